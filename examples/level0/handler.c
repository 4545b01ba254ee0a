/* Level 0 in C: needs libzmq and cJSON (Debian: apt-get install libzmq3-dev libcjson-dev), and no part of Stepwire. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* A handler fills in its output and returns NULL, or returns an error message. */
typedef const char *handler(const cJSON *config, const cJSON *order, const cJSON *before, cJSON *output);

static double number(const cJSON *object, const char *name) { /* NaN if the member is missing */
  return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static const char *sum(const cJSON *config, const cJSON *order, const cJSON *before, cJSON *output) {
  const char *of = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "of"));
  const cJSON *item, *items = cJSON_GetObjectItemCaseSensitive(order, "items");
  double sum = cJSON_IsArray(items) && of ? 0 : NAN;
  cJSON_ArrayForEach(item, items) sum += number(item, of ? of : "") * number(item, "count");
  return cJSON_AddNumberToObject(output, "sum", sum), isnan(sum) ? "an item lacks a number, or there are none" : NULL;
}

static const char *total(const cJSON *config, const cJSON *order, const cJSON *before, cJSON *output) {
  double goods = number(cJSON_GetObjectItemCaseSensitive(before, "goods"), "sum");
  double weight = number(cJSON_GetObjectItemCaseSensitive(before, "weight"), "sum");
  double volume = number(cJSON_GetObjectItemCaseSensitive(before, "volume"), "sum");
  double cents = goods + floor(weight * number(config, "cents_per_kg") / 1000);
  double parcels = ceil(volume / number(config, "millilitres_per_parcel"));
  cJSON_AddNumberToObject(output, "cents", cents), cJSON_AddNumberToObject(output, "parcels", parcels);
  return isfinite(cents) && isfinite(parcels) ? NULL : "a sum is missing, or a price";
}

static const struct { const char *name; handler *run; } handlers[] = {{"quote.sum", sum}, {"quote.total", total}};

/* Always return a result: without one, the broker waits until the step's timeout has expired. */
static cJSON *run(const cJSON *step) {
  const char *class = cJSON_GetStringValue(cJSON_GetObjectItem(step, "handler_class")), *wrong = "C has no such handler";
  cJSON *result = cJSON_CreateObject(), *output = cJSON_CreateObject();
  size_t i = 0, count = sizeof handlers / sizeof *handlers;
  while (i < count && strcmp(handlers[i].name, class)) i++;
  if (i < count)
    wrong = handlers[i].run(cJSON_GetObjectItem(step, "handler_config"), cJSON_GetObjectItem(step, "task_context"),
                            cJSON_GetObjectItem(step, "previous_results"), output);
  cJSON_AddStringToObject(output, "language", "c");
  cJSON_AddNumberToObject(result, "step_id", number(step, "step_id"));
  cJSON_AddStringToObject(result, "status", i == count ? "error" : wrong ? "failed" : "completed");
  if (!wrong) return cJSON_AddItemToObject(result, "output", output), result;
  cJSON *error = cJSON_AddObjectToObject(result, "error");
  if (i == count) cJSON_AddStringToObject(error, "code", "unknown_handler");
  cJSON_AddStringToObject(error, "message", wrong);
  cJSON_AddBoolToObject(error, "retryable", 0); /* the order itself is wrong, so a retry cannot help */
  return cJSON_Delete(output), result;
}

static void *connected(void *context, int type, const char *variable, const char *otherwise) {
  const char *endpoint = getenv(variable) ? getenv(variable) : otherwise;
  void *socket = zmq_socket(context, type);
  if (socket && (type != ZMQ_SUB || !zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "steps", 5)) && !zmq_connect(socket, endpoint))
    return socket;
  exit((fprintf(stderr, "handler: %s: %s\n", endpoint, zmq_strerror(errno)), 1));
}

int main(void) {
  void *context = zmq_ctx_new();
  void *steps = connected(context, ZMQ_SUB, "STEPWIRE_STEPS", "ipc://.stepwire/steps.sock");
  void *results = connected(context, ZMQ_PUB, "STEPWIRE_RESULTS", "ipc://.stepwire/results.sock");
  for (;;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, steps, 0) < 0) {
      if (errno == EINTR) continue;
      return perror("handler"), 1;
    }
    const char *text = zmq_msg_data(&message);
    size_t size = zmq_msg_size(&message);
    if (size < 6 || memcmp(text, "steps ", 6)) { /* some bindings also deliver what was not subscribed: a greeting */
      zmq_msg_close(&message);
      continue;
    }
    cJSON *batch = cJSON_ParseWithLength(text + 6, size - 6), *step, *answer = cJSON_CreateObject();
    cJSON_AddStringToObject(answer, "batch_id", cJSON_GetStringValue(cJSON_GetObjectItem(batch, "batch_id")));
    cJSON_AddStringToObject(answer, "protocol_version", "1.0");
    cJSON *all = cJSON_AddArrayToObject(answer, "results");
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(batch, "steps")) cJSON_AddItemToArray(all, run(step));
    char *json = cJSON_PrintUnformatted(answer), *frame = malloc(strlen(json) + sizeof "results ");
    sprintf(frame, "results %s", json);
    if (zmq_send(results, frame, strlen(frame), 0) < 0) return perror("handler"), 1;
    free(frame), free(json), cJSON_Delete(answer), cJSON_Delete(batch), zmq_msg_close(&message);
  }
}
