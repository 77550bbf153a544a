export interface Statement {
    text: string;
    values: (string | null)[];
}
export type Row = Record<string, any>;
/** Whatever can run a statement: a connection or transaction of pg, TypeORM, Prisma or Drizzle. */
export type Queryable = {
    query(text: string, values: any[]): Promise<any>;
} | {
    $queryRawUnsafe(text: string, ...values: any[]): Promise<any>;
} | {
    execute(query: any): Promise<any>;
};
export declare function send(connection: Queryable, { text, values }: Statement): Promise<Row[]>;
/** The text of a PostgreSQL array. */
export declare function arrayText(elements: readonly (string | number | bigint | null)[]): string;
/** The text of a JSON value, or null if there is none. */
export declare function jsonText(value: unknown): string | null;
/** The same for a value that there must be. */
export declare function requiredJson(value: unknown): string;
/** A PostgreSQL interval, such as "5 minutes", or a number of seconds. */
export type Interval = string | number;
/** The text of a delay. Throws if no server would take it: not a number, negative, or longer than 100 years. */
export declare function delayText(delay: Interval): string;
export declare function intervalText(interval: Interval): string;
