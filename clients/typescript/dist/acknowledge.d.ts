import { Connection } from "./connection.js";
import type { Logger, Outages } from "./connection.js";
import type { Outcome } from "./outcomes.js";
import type { Statement } from "./sql.js";
import type { Task } from "./task.js";
export interface Ended {
    task: Task;
    outcome: Outcome;
    /** Whether the server did not take it, and it was postponed. That is logged once. */
    late?: boolean;
}
export declare class Acknowledger {
    #private;
    private readonly connection;
    private readonly outages;
    private readonly logger;
    /** Called with the tasks whose ends are acknowledged. */
    private readonly done;
    constructor(connection: Connection, outages: Outages, logger: Logger, 
    /** Called with the tasks whose ends are acknowledged. */
    done: (tasks: Task[]) => void);
    /** How many ends are not acknowledged yet. */
    get count(): number;
    add(task: Task, outcome: Outcome): void;
    /** Returns when all are acknowledged. */
    flush(): Promise<void>;
    /** Gives up what could not be reported. The leases of these tasks will expire. */
    abandon(): void;
}
/** The statements that report a group. The last one returns the ids of the tasks for which it was accepted. The limit on
 *  waiting for locks is set before the function is called, because its first argument depends on it. */
export declare function acknowledgement(group: Ended[], lockTimeout: string | null): Statement[];
