import type { Row } from "./sql.js";
/** Where the database is: a connection string, or options of pg's Client. They are sent to another thread, so the
 *  password cannot be a function. */
export type ConnectionOptions = string | {
    connectionString?: string;
    host?: string;
    port?: number;
    user?: string;
    password?: string;
    database?: string;
    ssl?: boolean | object;
    sslnegotiation?: string;
    application_name?: string;
    options?: string;
    connectionTimeoutMillis?: number;
};
/** The longest time in milliseconds that a timer takes; longer ones end at once. */
export declare const LONGEST: number;
export declare class Connection {
    #private;
    /** Whether it was ever open. */
    opened: boolean;
    /** Whether the last statement was sent: a connection was open. */
    sent: boolean;
    constructor(options: ConnectionOptions | undefined, name: string);
    /** Opens it unless it is open. */
    open(): Promise<void>;
    /** Sends one statement, outside of a transaction block. Without an answer in time the connection counts as lost. */
    query(text: string, values: unknown[], seconds?: number): Promise<Row[]>;
    /** Asks the server to cancel the statement that is running. It may come too late, or too early. */
    cancel(): void;
    /** Closes it without waiting for a statement that is running. */
    drop(): void;
}
/** The SQLSTATE of an error that the server reported. */
export declare function sqlState(error: unknown): string | undefined;
/** Whether another connection may help. A server in recovery (25006) is to be replaced by the new primary. An error of a trigger
 *  leaves the connection open, for example when the trigger has lost a connection of its own to a foreign server. */
export declare function isConnectionLost(error: unknown): boolean;
/** Whether the server refuses what a statement contains: the values themselves, or by a trigger of the user's, which can use any
 *  SQLSTATE. The other classes are about the server, the connection, a lock, or an object that is missing or in use. */
export declare function isRefused(error: unknown): boolean;
/** Waits before a repetition: exponentially longer with full jitter, at most `limit` seconds. */
export declare function backoff(attempt: number, limit?: number, signal?: AbortSignal): Promise<void>;
/** A short description of an error. */
export declare function describe(error: any): string;
/** A short description of an error for the log. A trigger of the user's can have a payload in the text of its error, with any
 *  SQLSTATE. So only errors of a connection have their text: others than the server's, and those with which it refuses or ends
 *  a connection. */
export declare function summary(error: unknown): string;
/** What logs have to offer; the console does. */
export interface Logger {
    info(message: string): void;
    warn(message: string): void;
}
/** The same logger, but an error in it is ignored: it must not end the process. */
export declare function guardLogger(logger: Logger): Logger;
/** Logs each reason of an outage once, and its end, however many connections it concerns and however often they try. */
export declare class Outages {
    #private;
    private readonly logger;
    constructor(logger: Logger);
    failed(what: string, reason: string): void;
    worked(what: string): void;
}
