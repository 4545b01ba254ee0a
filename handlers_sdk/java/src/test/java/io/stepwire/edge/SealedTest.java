package io.stepwire.edge;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.stepwire.ConfigurationError;
import io.stepwire.Handler;
import io.stepwire.StepError;
import io.stepwire.Worker;
import io.stepwire.WorkerBuilder;
import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.Json;
import io.stepwire.worker.PlayedBroker;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Sealed payloads: the handler works with plaintext, and nothing readable leaves the worker. */
@Timeout(60)
class SealedTest {
  private static final String FILE = "sealed.json";
  private static final SealedTask TASK = new SealedTask("shop", "claim", "claim-7");
  private static final SealKeys KEYS = keys("2026-11");
  private static final Map<String, Object> CONTEXT =
      Map.of("patient", "A. Lovelace", "total", 12.5, "clear", Map.of("region", "eu"));

  @TempDir Path temporary;
  private PlayedBroker broker;
  private Worker worker;

  @AfterEach
  void end() throws InterruptedException {
    if (worker != null) {
      worker.drain(Duration.ZERO);
      worker.await(Duration.ofSeconds(10));
      broker.close();
    }
  }

  private static byte[] bytes(Object base64) {
    return Base64.getDecoder().decode((String) base64);
  }

  /** The keys of the vectors; the first one seals. */
  private static SealKeys keys(String first) {
    Map<String, byte[]> keys = new LinkedHashMap<>();
    for (int round = 0; round < 2; round++) {
      for (Map<String, Object> vector : Vectors.list(FILE, "keys")) {
        if (round == 1 || vector.get("kid").equals(first)) {
          keys.put((String) vector.get("kid"), bytes(vector.get("key")));
        }
      }
    }
    return new SealKeys(keys);
  }

  private static SealedTask taskOf(Map<String, Object> vector) {
    return new SealedTask(
        (String) vector.get("namespace"),
        (String) vector.get("workflow"),
        (String) vector.get("key"));
  }

  // -- the vectors --------------------------------------------------------------------------------

  @TestFactory
  Stream<DynamicTest> twoKeysAreDerivedFromAKey() {
    HexFormat hex = HexFormat.of();
    return Vectors.tests(
        FILE,
        "keys",
        vector -> {
          byte[] key = bytes(vector.get("key"));
          String encryption = hex.formatHex(SealKeys.derived(key, SealKeys.ENCRYPTION));
          assertEquals(vector.get("encryption_key"), encryption);
          assertEquals(
              vector.get("nonce_key"), hex.formatHex(SealKeys.derived(key, SealKeys.NONCE)));
        });
  }

  @TestFactory
  Stream<DynamicTest> aPayloadIsSealedByteForByteAndUnsealed() {
    return Vectors.tests(
        FILE,
        "sealed",
        vector -> {
          String kind = (String) vector.get("kind");
          String step = (String) vector.get("step");
          Map<?, ?> payload = (Map<?, ?>) vector.get("payload");
          String kid = (String) payload.get("kid");
          byte[] plaintext = ((String) vector.get("plaintext")).getBytes(UTF_8);
          byte[] aad = SealKeys.associatedData(kind, kid, taskOf(vector), step);
          assertEquals(vector.get("aad"), Base64.getEncoder().encodeToString(aad));
          byte[] sealed = keys(kid).seal(kind, taskOf(vector), step, plaintext);
          assertEquals(Json.text(payload), new String(sealed, UTF_8));
          byte[] unsealed = keys(kid).unseal(kind, taskOf(vector), step, payload);
          assertEquals(vector.get("plaintext"), new String(unsealed, UTF_8));
        });
  }

  @TestFactory
  Stream<DynamicTest> aChangedOrForeignPayloadIsNotUnsealed() {
    return Vectors.tests(
        FILE,
        "refused",
        vector -> {
          String kind = (String) vector.get("kind");
          String step = (String) vector.get("step");
          Map<?, ?> payload = (Map<?, ?>) vector.get("payload");
          NotUnsealed error =
              assertThrows(
                  NotUnsealed.class, () -> KEYS.unseal(kind, taskOf(vector), step, payload));
          assertEquals(vector.get("sentence"), error.getMessage());
        });
  }

  @TestFactory
  Stream<DynamicTest> aFileOfKeysIsReadOrRefusedInItsSentence() {
    return Vectors.list(FILE, "key_files").stream()
        .map(
            vector ->
                DynamicTest.dynamicTest((String) vector.get("name"), () -> checkKeyFile(vector)));
  }

  private void checkKeyFile(Map<String, Object> vector) throws Exception {
    Path path = Files.createTempDirectory(temporary, "keys").resolve("seal.keys");
    if (vector.get("text") != null) {
      boolean isSize = vector.get("text") instanceof Long;
      Files.writeString(
          path,
          isSize
              ? "#".repeat(((Long) vector.get("text")).intValue())
              : (String) vector.get("text"));
      Vectors.chmod((String) vector.get("mode"), path);
    }
    if (vector.get("kids") instanceof List<?> kids) {
      assertEquals(kids, List.copyOf(SealKeyFile.read(path.toString()).keySet()));
      return;
    }
    WorkerBuilder settings = Worker.builder().sealKeysFile(path.toString());
    ConfigurationError error = assertThrows(ConfigurationError.class, settings::build);
    String sentence = (String) vector.get("sentence");
    assertEquals(sentence.replace("{path}", path.toString()), error.getMessage());
  }

  @Test
  void theTextOfALongErrorFitsIntoItsLimit() {
    List<String> lines = new ArrayList<>(Collections.nCopies(100, "x".repeat(80)));
    lines.set(0, "innermost");
    ErrorDetail error = new ErrorDetail("ä".repeat(1_500), null, null, null, null, lines);
    byte[] text = SealedSteps.textOf(error);
    assertTrue(text.length <= 5_000);
    Map<?, ?> read = (Map<?, ?>) Json.parse(text);
    assertEquals("ä".repeat(1_000), read.get("message"));
    assertEquals("innermost", ((List<?>) read.get("backtrace")).get(0));
    ErrorDetail escaped = ErrorDetail.of("\u0001".repeat(1_000), null, null);
    assertTrue(SealedSteps.textOf(escaped).length <= 5_000);
  }

  // -- in a worker --------------------------------------------------------------------------------

  private static String sealed(String kind, String step, Object value) {
    return new String(KEYS.seal(kind, TASK, step, Json.encode(value)), UTF_8);
  }

  private static Object unsealed(String kind, Object payload) {
    return Json.parse(KEYS.unseal(kind, TASK, "work", (Map<?, ?>) payload));
  }

  private String keysFile() throws IOException, InterruptedException {
    Path path = Files.createTempDirectory(temporary, "keys").resolve("seal.keys");
    StringBuilder lines = new StringBuilder();
    for (Map<String, Object> vector : Vectors.list(FILE, "keys")) {
      lines.append(vector.get("kid")).append('=').append(vector.get("key")).append('\n');
    }
    Files.writeString(path, lines);
    Vectors.chmod("0600", path);
    return path.toString();
  }

  private void start(WorkerBuilder settings, Handler<Object> handler) {
    broker = new PlayedBroker(null);
    worker = settings.steps(broker.steps()).results(broker.results()).name("test").build();
    worker.handle("assess", Object.class, handler).start();
    broker.welcome(10_000);
  }

  @Test
  void aHandlerWorksWithPlaintextAndItsOutputIsSealed() throws Exception {
    Handler<Object> assess =
        (context, input) ->
            Map.of("of", input, "before", context.results(), "clear", Map.of("review", true));
    start(Worker.builder().sealKeysFile(keysFile()).secrets(name -> "sk_live_5eb6"), assess);
    Map<String, Object> before = new LinkedHashMap<>();
    before.put("before", Json.parse(sealed("output", "before", Map.of("score", 3))));
    before.put("skipped", null);
    Map<String, Object> context = new LinkedHashMap<>(CONTEXT);
    context.put("key", Map.of("$secret", "k"));
    broker.step(
        1, "assess", sealed("context", null, context), Map.of("previous_results", before));
    Map<?, ?> output = (Map<?, ?>) broker.result(1).get("output");
    assertEquals(
        List.of("$sealed", "kid", "nonce", "data", "clear"), List.copyOf(output.keySet()));
    assertEquals(Map.of("review", true), output.get("clear"));
    Map<?, ?> plain = (Map<?, ?>) unsealed("output", output);
    context.put("key", "[secret k]");
    assertEquals(context, plain.get("of"));
    before.put("before", Map.of("score", 3L));
    assertEquals(before, plain.get("before"));
  }

  @Test
  void anErrorIsSealedAndNeitherLogNorProgressHasItsText() throws Exception {
    List<String> logged = Collections.synchronizedList(new ArrayList<>());
    java.util.logging.Handler recorder = recorder(logged);
    Logger.getLogger("stepwire").addHandler(recorder);
    try {
      Handler<Object> fail =
          (context, input) -> {
            String patient = (String) ((Map<?, ?>) input).get("patient");
            context.progress(1, 2, patient);
            Thread.sleep(300);
            throw new StepError(patient + " " + "x".repeat(9_000), patient, null);
          };
      start(Worker.builder().sealKeysFile(keysFile()), fail);
      broker.step(1, "assess", sealed("context", null, CONTEXT));
      List<?> item = (List<?>) ((List<?>) broker.next("progress").get("items")).get(0);
      assertNull(item.get(4));
      Map<?, ?> error = (Map<?, ?>) broker.result(1).get("error");
      assertEquals(
          "the error is sealed: stepwire task show --unseal prints it", error.get("message"));
      assertNull(error.get("code"));
      String payload = (String) ((List<?>) error.get("backtrace")).get(0);
      Map<?, ?> text = (Map<?, ?>) unsealed("error", Json.parse(payload));
      assertTrue(((String) text.get("message")).startsWith("A. Lovelace xxx"));
      String lines = String.join("\n", logged);
      assertTrue(lines.contains("failed: StepError; the text of the error is sealed"), lines);
      assertFalse(lines.contains("Lovelace"), lines);
    } finally {
      Logger.getLogger("stepwire").removeHandler(recorder);
    }
  }

  private static java.util.logging.Handler recorder(List<String> logged) {
    return new java.util.logging.Handler() {
      {
        setLevel(Level.ALL);
      }

      @Override
      public void publish(LogRecord record) {
        logged.add(record.getMessage() + " " + record.getThrown());
      }

      @Override
      public void flush() {}

      @Override
      public void close() {}
    };
  }

  @Test
  void aWorkerWithoutTheKeyDoesNotRunTheStep() {
    List<Object> called = Collections.synchronizedList(new ArrayList<>());
    start(Worker.builder(), (context, input) -> called.add(1));
    broker.step(1, "assess", sealed("context", null, CONTEXT));
    Map<?, ?> result = broker.result(1);
    Map<?, ?> error = (Map<?, ?>) result.get("error");
    assertEquals("error", result.get("status"));
    assertEquals("not_unsealed", error.get("code"));
    assertEquals(true, error.get("retryable"));
    assertEquals(
        "the step is sealed, and this worker has no keys: set STEPWIRE_SEAL_KEYS_FILE",
        error.get("message"));
    assertEquals(List.of(), called);
  }

  @Test
  void aSealedContextWithoutItsTaskOrWithLongIntegersIsNotUnsealed() throws Exception {
    start(Worker.builder().sealKeysFile(keysFile()), (context, input) -> input);
    Map<?, ?> payload = (Map<?, ?>) Json.parse(sealed("context", null, CONTEXT));
    payload.remove("task");
    broker.step(1, "assess", Json.text(payload));
    Map<?, ?> error = (Map<?, ?>) broker.result(1).get("error");
    assertEquals("the context is sealed, and does not name its task", error.get("message"));
    byte[] rounded = "{\"n\":9007199254740993}".getBytes(UTF_8);
    broker.step(2, "assess", new String(KEYS.seal("context", TASK, null, rounded), UTF_8));
    error = (Map<?, ?>) broker.result(2).get("error");
    assertTrue(((String) error.get("message")).endsWith(": integer_out_of_range"));
  }
}
