import type { Connection } from "./connection.js";
import type { Statement } from "./sql.js";
export declare class Claims {
    #private;
    private readonly lease;
    private readonly worker;
    constructor(queues: string | string[], lease: string | null, worker: string);
    claim(tasks: number): Statement;
    /** Waits on the server until there may be something to claim, or until the signal. */
    wait(connection: Connection, stop: AbortSignal): Promise<void>;
}
