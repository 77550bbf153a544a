// The form that pushes a task.

import { act, get } from "./api.js";
import { link } from "./parts.js";
import { field, fill, note } from "./forms.js";

export async function open(queue, again) {
  const queues = ((await get("overview")).queues.value?.queues || []).map((row) => row.queue);
  fill({
    title: "Push a task", verb: "Push",
    fields: [
      field("target", "Queue", queue, { options: queues.map((name) => [name, name]) }),
      field("kind", "Kind"),
      field("payload", "Payload, as JSON", "{}", { lines: 6 }),
      field("key", "Key", "", { hint: "No other task of the queue may have it." }),
      field("group_key", "Group"),
      field("priority", "Priority", "", { inputmode: "numeric", placeholder: "0", hint: "The smallest is claimed first." }),
      field("delay", "Delay", "", { placeholder: "none", hint: "Such as 10 minutes." }),
      field("max_attempts", "Attempts", "", { inputmode: "numeric", placeholder: "as the queue" }),
      field("headers", "Headers, as a JSON object", "", { lines: 2 }),
    ],
    send: async (values) => {
      const { result } = await act({ action: "push", ...values });
      note("good", "Pushed task ", link("task", { id: result }, result), ` into ${values.target}`);
      again();
    },
  });
}
