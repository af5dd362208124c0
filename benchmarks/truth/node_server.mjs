// The same endpoint as aiohttp_app.py, for Node.js.
import http from "node:http";
import fs from "node:fs";

let fault = {};
let isLogging = false;
const file = fs.openSync(process.env.TRUTH_LOG, "a");
const connections = new Map();
let number = 0;
const epoch = BigInt(Date.now()) * 1000000n - process.hrtime.bigint();

function log(event, request, more = {}) {
  if (!isLogging) return;
  const time = (epoch + process.hrtime.bigint()).toString();
  fs.writeSync(file, `{"time_ns": ${time}, ${JSON.stringify({ event, request, ...more }).slice(1)}\n`);
}
const wait = (seconds) => (seconds ? new Promise((done) => setTimeout(done, seconds * 1000)) : undefined);

async function ingest(request, response) {
  const mine = number++;
  const socket = request.socket;
  if (!connections.has(socket)) connections.set(socket, connections.size);
  const connection = connections.get(socket);
  log("head", mine, { connection });
  const isBeyond = connection >= (fault.connections ?? Infinity);
  if (!isBeyond) await wait(fault.read_delay);
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (fault.read_rate) await wait(piece.length / fault.read_rate);
  }
  if (!isBeyond) log("end", mine, { bytes: size });
  if (fault.cut_every && mine % fault.cut_every === fault.cut_every - 1) {
    log("cut", mine);
    return socket.resetAndDestroy();
  }
  if (!isBeyond) await wait(fault.response_delay);
  const isRefused = fault.refuse_every && mine % fault.refuse_every === fault.refuse_every - 1;
  const status = isRefused || isBeyond ? 503 : 200;
  log("response", mine, { status });
  response.writeHead(status, { "content-length": 0 });
  response.end();
}

const server = http.createServer((request, response) => ingest(request, response).catch(() => {}));
server.requestTimeout = 0;

// Node.js compiles functions at their first calls. This takes milliseconds, and much of it follows the log's line about
// the first response. So the first requests are its own, on another port, each second one on a new connection.
const listen = (port) => new Promise((done) => server.listen(port, "127.0.0.1", done));
const ask = (port, agent) =>
  new Promise((done, failed) => {
    const request = http.request({ host: "127.0.0.1", port, agent, method: "POST" }, (response) => {
      response.resume().on("end", done);
    });
    request.on("error", failed).end("warm");
  });
await listen(0);
const agent = new http.Agent({ keepAlive: true });
for (let times = 0; times < 500; times++) await ask(server.address().port, times % 2 ? agent : false);
agent.destroy();
await new Promise((done) => server.close(done));
connections.clear();
number = 0;

fault = JSON.parse(process.env.TRUTH_FAULT);
isLogging = true;
await listen(Number(process.env.TRUTH_PORT));
