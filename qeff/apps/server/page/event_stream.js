// Reads a text/event-stream body: gives the data of each event, as text. Knows nothing of what the
// data say. Comments (the server's heartbeat) and field names other than data are passed over.

export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) break;
      // A carriage return at the end may be the first half of a line end: it waits in `rest`.
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the answer has been left: nobody hears how that ends
  }
}
