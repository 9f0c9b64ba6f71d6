"""Commands that are struck at a random moment: killed, stopped, cut off from disk or data; and what must hold then."""
