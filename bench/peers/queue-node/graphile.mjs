// Graphile Worker, with the settings its own page on performance measures: jobs are fetched 500 at
// a time into a local queue and completed in batches.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pinned from "./package.json" with { type: "json" };

const version = pinned.dependencies["graphile-worker"];
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});
const options = {
  preset: {
    worker: {
      connectionString: process.env.DATABASE_URL,
      logger,
      concurrentJobs: 24,
      maxPoolSize: 25,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
};

export const peer = {
  is: `Graphile Worker ${version}: local queue 500, batched completion`,
  unsettled: "select count(*)::int from graphile_worker._private_jobs",
  prepare: () => runMigrations(options),
  async publisher() {
    const client = await makeWorkerUtils(options);
    const job = (payload) => ({ identifier: "event", payload });
    return {
      add: (payloads) => client.addJobs(payloads.map(job)),
      close: () => client.release(),
    };
  },
  async work(handle) {
    const taskList = { event: async (payload) => handle(payload.number) };
    const runner = await run({ ...options, noHandleSignals: true, crontab: "", taskList });
    return () => runner.stop();
  },
};
