// Makes pg-boss's tables and a queue, as an application's first start does.
import { PgBoss } from "pg-boss";

const boss = new PgBoss({ host: process.env.PGHOST, user: process.env.PGUSER, database: process.env.PGDATABASE });
boss.on("error", (error) => console.error(error));
await boss.start();
await boss.createQueue("bench");
await boss.stop({ graceful: false });
process.exit(0);
