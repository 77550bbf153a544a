// The signal of a task. In Node, an exception in a listener of a signal ends the process, with all its tasks.

type Listener = ((event: Event) => unknown) | { handleEvent(event: Event): unknown } | null;

/** Makes the signal call `threw` instead when a listener throws or returns a promise that is rejected. Node sets `onabort`
 *  by `addEventListener`. */
export function guardListeners(signal: AbortSignal, threw: () => void): void {
  const guarded = new WeakMap<object, (event: Event) => Promise<void>>();
  const guard = (listener: NonNullable<Listener>) => async function (this: unknown, event: Event) {
    try {
      await (typeof listener === "function" ? listener.call(this, event) : listener.handleEvent(event));
    } catch {
      threw();
    }
  };
  const add = signal.addEventListener.bind(signal);
  const remove = signal.removeEventListener.bind(signal);
  signal.addEventListener = (type: string, listener: Listener, options?: any) => {
    if (listener && !guarded.has(listener)) guarded.set(listener, guard(listener));
    add(type, (listener && guarded.get(listener)) as any, options);
  };
  signal.removeEventListener = (type: string, listener: Listener, options?: any) => {
    remove(type, (listener && guarded.get(listener)) as any, options);
  };
}
