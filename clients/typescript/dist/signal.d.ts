/** Makes the signal call `threw` instead when a listener throws or returns a promise that is rejected. Node sets `onabort`
 *  by `addEventListener`. */
export declare function guardListeners(signal: AbortSignal, threw: () => void): void;
