// Drives Graphile Worker or pg-boss with the commands of ../README.md: `main.mjs PEER COMMAND …`.
import fs from "node:fs";
import pg from "pg";

const [name, command, ...rest] = process.argv.slice(2);
const { peer } = await import(`./${name}.mjs`);

const PAUSE_MS = 5;
// Events per transaction when nothing but the number of events matters.
const BULK = 1000;
// Events per transaction of a publisher that keeps to a rate.
const SMALL = 10;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const answer = (value) => fs.writeSync(1, JSON.stringify(value) + "\n");

// Microseconds since 1970, on the clock that all processes of this machine read.
function micros() {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}

function cpuSeconds() {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
}

// Payloads of 200 bytes as JSON, numbered from `first`.
function payloads(first, count) {
  return Array.from({ length: count }, (_, index) => {
    const number = first + index;
    const frame = `{"number":${number},"text":""}`.length;
    return { number, text: "x".repeat(200 - frame) };
  });
}

async function publish(count) {
  const publisher = await peer.publisher();
  const began = micros();
  for (let first = 0; first < count; first += BULK) {
    await publisher.add(payloads(first, Math.min(BULK, count - first)));
  }
  answer({ began_us: began, ended_us: micros() });
  await publisher.close();
}

// Keeps to the rate by the clock: a late transaction does not make the next one later.
async function publishAt(rate, seconds, file) {
  const publisher = await peer.publisher();
  const lines = [];
  const began = micros();
  for (let first = 0; first < rate * seconds; first += SMALL) {
    const early = began + (first / rate) * 1e6 - micros();
    if (early > 500) await sleep(early / 1000);
    await publisher.add(payloads(first, SMALL));
    const committed = micros();
    for (let index = 0; index < SMALL; index++) lines.push(`${first + index} ${committed}\n`);
  }
  answer({ began_us: began, ended_us: micros() });
  fs.writeFileSync(file, lines.join(""));
  await publisher.close();
}

async function drain(count, file) {
  const lines = [];
  let handled = 0;
  const handle = (number) => {
    handled += 1;
    if (file) lines.push(`${number} ${micros()}\n`);
  };
  const counter = new pg.Client(process.env.DATABASE_URL);
  await counter.connect();
  const began = micros();
  const stop = await peer.work(handle);
  answer({ ready: true });
  while (handled < count) await sleep(PAUSE_MS);
  // Handled is not settled: what a batch completer still has in memory would run again.
  while ((await counter.query(peer.unsettled)).rows[0].count > 0) await sleep(PAUSE_MS);
  answer({
    handled,
    began_us: began,
    ended_us: micros(),
    cpu_s: cpuSeconds(),
    rss_mb: process.memoryUsage.rss() / (1 << 20),
  });
  if (file) fs.writeFileSync(file, lines.join(""));
  await counter.end();
  await Promise.race([stop(), sleep(4000)]);
}

switch (command) {
  case "prepare":
    await peer.prepare();
    answer({ is: peer.is });
    break;
  case "publish":
    await publish(Number(rest[0]));
    break;
  case "publish-at":
    await publishAt(Number(rest[0]), Number(rest[1]), rest[2]);
    break;
  case "drain":
    await drain(Number(rest[0]), rest[1]);
    break;
  default:
    throw new Error(`no command ${command}`);
}
process.exit(0);
