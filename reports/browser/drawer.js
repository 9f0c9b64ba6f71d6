// One layer from near.
on("select", (position) => {});
