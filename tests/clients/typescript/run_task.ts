// Submits a task, waits for its end and prints its result, with the client that openapi-typescript generated.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const client = createClient<paths>({
  baseUrl: process.env["STEPWIRE_URL"]!,
  headers: { Authorization: `Bearer ${process.env["STEPWIRE_TOKEN"]}` },
});

// Every state has a case, so a new state of the broker is an error of the compiler here.
function isFinal(state: components["schemas"]["TaskState"]): boolean {
  switch (state) {
    case "completed":
    case "failed":
    case "cancelled":
      return true;
    case "pending":
    case "running":
    case "paused":
      return false;
    default:
      return state satisfies never;
  }
}

const submitted = await client.POST("/v1/tasks", {
  params: { header: { "Idempotency-Key": "typescript-1" } },
  body: { namespace: "shop", workflow: "order", context: { card: "good" }, priority: 3 },
});
if (submitted.error) throw new Error(submitted.error.detail);

const taskId = submitted.data.task_id;
let task;
do {
  const shown = await client.GET("/v1/tasks/{task_id}", {
    params: { path: { task_id: taskId }, query: { wait_ms: 20_000 } },
  });
  if (shown.error) throw new Error(shown.error.detail);
  task = shown.data;
} while (!isFinal(task.state));

const missing = await client.GET("/v1/tasks/{task_id}", { params: { path: { task_id: Number.MAX_SAFE_INTEGER } } });
if (missing.error?.code !== "not_found") throw new Error("a task that does not exist was found");
if (missing.error.next?.code !== "list_tasks") throw new Error("the problem has no next action");

console.log(JSON.stringify({ state: task.state, result: task.result, steps: task.steps.map((step) => step.state) }));
