// The signal of a task. In Node, an exception in a listener of a signal ends the process, with all its tasks.
/** Makes the signal call `threw` instead when a listener throws or returns a promise that is rejected. Node sets `onabort`
 *  by `addEventListener`. */
export function guardListeners(signal, threw) {
    const guarded = new WeakMap();
    const guard = (listener) => async function (event) {
        try {
            await (typeof listener === "function" ? listener.call(this, event) : listener.handleEvent(event));
        }
        catch {
            threw();
        }
    };
    const add = signal.addEventListener.bind(signal);
    const remove = signal.removeEventListener.bind(signal);
    signal.addEventListener = (type, listener, options) => {
        if (listener && !guarded.has(listener))
            guarded.set(listener, guard(listener));
        add(type, (listener && guarded.get(listener)), options);
    };
    signal.removeEventListener = (type, listener, options) => {
        remove(type, (listener && guarded.get(listener)), options);
    };
}
