// pg-boss: batches of 500, the next one as soon as the last was full, woken by notifications.
import { PgBoss } from "pg-boss";
import pinned from "./package.json" with { type: "json" };

const version = pinned.dependencies["pg-boss"];
const QUEUE = "event";

async function start(options) {
  const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, ...options });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

export const peer = {
  is: `pg-boss ${version}: batches of 500, two workers, notified`,
  unsettled: `select count(*)::int from pgboss.job where name = '${QUEUE}' and state < 'completed'`,
  async prepare() {
    const boss = await start({});
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop({ graceful: false });
  },
  async publisher() {
    const boss = await start({ supervise: false, schedule: false });
    return {
      add: (payloads) => boss.insert(QUEUE, payloads.map((data) => ({ data }))),
      close: () => boss.stop({ graceful: false }),
    };
  },
  async work(handle) {
    const boss = await start({ useListenNotify: true });
    const settings = { batchSize: 500, burstWhenBatchFull: true, localConcurrency: 2 };
    await boss.work(QUEUE, settings, async (jobs) => {
      for (const job of jobs) handle(job.data.number);
    });
    return () => boss.stop({ graceful: true, timeout: 3000 });
  },
};
