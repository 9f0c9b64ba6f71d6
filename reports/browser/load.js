// Decompresses the program and the data that the page carries, and runs the program; the policy of the page knows the
// checksums of both.

/** Text by the id of the element that carries it. */
const carried = new Map();

/** Text that was compressed by gzip and written in base64. */
function decompress(encoded) {
  const letters = atob(encoded.trim());
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Run the program; a page that is damaged, or a browser that cannot decompress, leaves one to read. */
async function runProgram() {
  const elements = [...document.querySelectorAll("#program, script[id^='data-']")];
  try {
    await Promise.all(elements.map(async ({ id, textContent }) => carried.set(id, await decompress(textContent))));
  } catch (error) {
    document.documentElement.classList.remove("scripted");
    throw error;
  }
  const script = document.createElement("script");
  script.textContent = carried.get("program");
  document.body.append(script);
}

/** Done when the page answers. */
const running = runProgram();
