// Makes graphile-worker's tables, as its runner does at every start.
import { makeWorkerUtils } from "graphile-worker";

const utils = await makeWorkerUtils({ connectionString: process.env.DATABASE_URL });
await utils.migrate();
await utils.addJob("bench", {});
await utils.release();
process.exit(0);
