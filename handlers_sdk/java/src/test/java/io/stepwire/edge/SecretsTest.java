package io.stepwire.edge;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.stepwire.Context;
import io.stepwire.Handler;
import io.stepwire.SecretResolver;
import io.stepwire.StepLogger;
import io.stepwire.Worker;
import io.stepwire.WorkerBuilder;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.Raw;
import io.stepwire.testing.Outcome;
import io.stepwire.testing.Testing;
import io.stepwire.worker.PlayedBroker;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** References to secrets: resolved before the handler, and absent from all that leaves a worker. */
@Timeout(60)
class SecretsTest {
  private static final String FILE = "secrets.json";
  private static final String KEY = "sk_live_5eb63bbbe01eeed0";
  private static final String CARD = "4929-7654-0001";
  private static final Map<String, Object> CONFIG =
      Map.of("handler_config", Json.parse("{\"key\":{\"$secret\":\"stripe/live\"}}"));
  private static final String CONTEXT = "{\"card\":{\"$secret\":\"card\"},\"n\":1}";
  private static final Logger STEPWIRE = Logger.getLogger("stepwire");

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

  // -- the vectors --------------------------------------------------------------------------------

  @TestFactory
  Stream<DynamicTest> aNameIsARelativePathOfPlainFileNames() {
    return Vectors.tests(
        FILE,
        "names",
        vector -> assertEquals(vector.get("valid"), SecretReferences.isName(vector.get("name"))));
  }

  @TestFactory
  Stream<DynamicTest> oneLineEndIsNotPartOfAValue() {
    return Vectors.tests(
        FILE,
        "contents",
        vector -> {
          byte[] content = ((String) vector.get("content")).getBytes(StandardCharsets.UTF_8);
          if (vector.get("value") == null) {
            assertThrows(SecretUnavailable.class, () -> SecretFiles.valueOf("card", content));
          } else {
            assertEquals(vector.get("value"), SecretFiles.valueOf("card", content));
          }
        });
  }

  @TestFactory
  Stream<DynamicTest> aFileGivesItsValueOrIsRefusedInItsSentence() {
    return Vectors.list(FILE, "files").stream()
        .map(
            vector ->
                DynamicTest.dynamicTest((String) vector.get("name"), () -> checkFile(vector)));
  }

  private void checkFile(Map<String, Object> vector) throws IOException, InterruptedException {
    boolean isRoot = (int) Files.getAttribute(Path.of("/proc/self"), "unix:uid") == 0;
    Assumptions.assumeTrue(isRoot || !vector.containsKey("needs_root"));
    String directory = made(vector);
    if (vector.get("sentence") instanceof String sentence) {
      SecretUnavailable error =
          assertThrows(SecretUnavailable.class, () -> SecretFiles.read(directory, "card"));
      assertEquals(sentence.replace("{directory}", directory), error.getMessage());
      assertNull(error.category());
    } else if (vector.get("value") instanceof String value) {
      assertEquals(value, SecretFiles.read(directory, "card"));
    } else {
      assertEquals(vector.get("value_bytes"), (long) SecretFiles.read(directory, "card").length());
    }
  }

  /** The directory of secrets that a vector describes. */
  private String made(Map<String, Object> vector) throws IOException, InterruptedException {
    Path directory = Files.createTempDirectory(temporary, "made").resolve("secrets");
    String mode = (String) vector.getOrDefault("directory", "0700");
    if (mode.equals("file")) {
      Files.writeString(directory, "");
    } else if (!mode.equals("none")) {
      Files.createDirectory(directory);
      Vectors.chmod(mode, directory);
      if (vector.get("directory_owner") instanceof Long owner) {
        Files.setAttribute(directory, "unix:uid", owner.intValue());
      }
    }
    if (!(vector.get("file") instanceof Map<?, ?> file)) {
      return directory.toString();
    }
    Path path = directory.resolve("card");
    if (file.get("link") instanceof String link) {
      Files.createSymbolicLink(path, Path.of(link));
      path = directory.resolve(link);
    }
    if (file.containsKey("folder")) {
      Files.createDirectory(path);
    } else if (file.containsKey("pipe")) {
      new ProcessBuilder("mkfifo", "-m", "600", path.toString()).start().waitFor();
    } else {
      Files.write(path, contentOf(file));
      Vectors.chmod((String) file.get("mode"), path);
      if (file.get("owner") instanceof Long owner) {
        Files.setAttribute(path, "unix:uid", owner.intValue());
      }
    }
    return directory.toString();
  }

  private static byte[] contentOf(Map<?, ?> file) {
    if (file.get("base64") instanceof String base64) {
      return Base64.getDecoder().decode(base64);
    }
    String text =
        file.get("bytes") instanceof Long bytes
            ? "x".repeat(bytes.intValue())
            : (String) file.get("content");
    return text.getBytes(StandardCharsets.UTF_8);
  }

  @TestFactory
  Stream<DynamicTest> aReferenceIsReplacedByItsValue() {
    return Vectors.tests(
        FILE,
        "resolve",
        vector -> {
          Map<?, ?> known = (Map<?, ?>) vector.get("secrets");
          SecretValues values = new SecretValues(name -> (String) known.get(name));
          if (vector.get("sentence") instanceof String sentence) {
            SecretUnavailable error =
                assertThrows(
                    SecretUnavailable.class,
                    () -> SecretReferences.replaced(vector.get("value"), values::valueOf));
            assertEquals(sentence, error.getMessage());
          } else {
            Object replaced = SecretReferences.replaced(vector.get("value"), values::valueOf);
            assertEquals(vector.get("resolved"), replaced);
          }
        });
  }

  @TestFactory
  Stream<DynamicTest> aResolverWithoutAValueIsNamedInASentence() {
    return Vectors.tests(
        FILE,
        "resolver",
        vector -> {
          SecretResolver answer =
              name -> {
                if (vector.get("raises") instanceof String text) {
                  throw new IOException(text);
                }
                return (String) vector.get("returns");
              };
          boolean hasSource = !Boolean.FALSE.equals(vector.get("source"));
          SecretValues values = new SecretValues(hasSource ? answer : null);
          SecretUnavailable error =
              assertThrows(SecretUnavailable.class, () -> values.valueOf("card"));
          String sentence =
              ((String) vector.get("sentence"))
                  .replace("{error}", "IOException")
                  .replace("{argument}", "Worker.builder().secrets(...)");
          assertEquals(sentence, error.getMessage());
          assertEquals(vector.get("category"), error.category());
        });
  }

  @TestFactory
  Stream<DynamicTest> aTextLosesTheValues() {
    return Vectors.tests(
        FILE,
        "redact",
        vector -> {
          Redactor redactor = new Redactor();
          ((Map<?, ?>) vector.get("secrets"))
              .forEach((name, value) -> redactor.add((String) name, (String) value));
          assertEquals(vector.get("redacted"), redactor.redact((String) vector.get("text")));
        });
  }

  @TestFactory
  Stream<DynamicTest> anOutputLosesTheValues() {
    return Vectors.tests(
        FILE,
        "output",
        vector -> {
          Map<String, String> values = new LinkedHashMap<>();
          ((Map<?, ?>) vector.get("secrets"))
              .forEach((name, value) -> values.put((String) name, (String) value));
          byte[] output = SecretValues.withoutValues(Json.encode(vector.get("output")), values);
          assertEquals(vector.get("redacted"), Json.parse(output));
        });
  }

  @Test
  void aRedactorKeepsTheLatestValuesAndIsBounded() {
    Redactor redactor = new Redactor();
    for (int n = 0; n <= Redactor.VALUES_MAX; n++) {
      redactor.add("n" + n, String.format("value-%06d", n));
    }
    assertEquals("value-000000 [secret n1]", redactor.redact("value-000000 value-000001"));
  }

  @Test
  void aReferenceMayHaveEscapesAndPlainDataNeedsNoOpening() {
    assertTrue(Raw.of("{\"\\u0024secret\":\"card\"}").mayNeedOpening());
    assertTrue(Raw.of(CONTEXT).mayNeedOpening());
    assertFalse(Raw.of("{\"cost\":\"$5\",\"text\":\"\\n\\u20ac\"}").mayNeedOpening());
  }

  // -- in a worker --------------------------------------------------------------------------------

  private void start(WorkerBuilder settings, Map<String, Handler<Object>> handlers) {
    broker = new PlayedBroker(null);
    worker = settings.steps(broker.steps()).results(broker.results()).name("test").build();
    handlers.forEach((name, handler) -> worker.handle(name, Object.class, handler));
    worker.start();
    broker.welcome(2_000);
  }

  private String secrets() throws IOException, InterruptedException {
    Path directory = Files.createTempDirectory(temporary, "secrets");
    Files.createDirectory(directory.resolve("stripe"));
    Map<String, String> values = Map.of("stripe/live", KEY + "\n", "card", CARD);
    for (Map.Entry<String, String> each : values.entrySet()) {
      Files.writeString(directory.resolve(each.getKey()), each.getValue());
      Vectors.chmod("0600", directory.resolve(each.getKey()));
    }
    return directory.toString();
  }

  @Test
  void aHandlerReceivesTheValuesInThePlaceOfReferences() throws Exception {
    List<Object> seen = Collections.synchronizedList(new ArrayList<>());
    Handler<Object> pay =
        (context, input) -> seen.add(List.of(input, context.config(), context.results()));
    start(Worker.builder().secrets(secrets()), Map.of("pay", pay));
    Map<String, Object> members = new LinkedHashMap<>(CONFIG);
    members.put("previous_results", Map.of("a", Json.parse(CONTEXT)));
    broker.step(1, "pay", CONTEXT, members);
    assertEquals("completed", broker.result(1).get("status"));
    Map<String, Object> input = Map.of("card", CARD, "n", 1L);
    Map<String, Object> before = Map.of("a", Json.parse(CONTEXT));
    assertEquals(List.of(input, Map.of("key", KEY), before), seen.get(0));
    broker.step(2, "pay", "{}", Map.of("input", Json.parse(CONTEXT)));
    broker.result(2);
    assertEquals(List.of(input, Map.of(), Map.of()), seen.get(1));
  }

  @Test
  void aRotatedSecretIsUsedForTheNextStep() throws Exception {
    String directory = secrets();
    Handler<Object> length =
        (context, input) -> ((String) ((Map<?, ?>) context.config()).get("key")).length();
    start(Worker.builder().secrets(directory), Map.of("length", length));
    broker.step(1, "length", "{}", CONFIG);
    assertEquals((long) KEY.length(), broker.result(1).get("output"));
    Files.writeString(Path.of(directory, "stripe/live"), "rotated");
    broker.step(2, "length", "{}", CONFIG);
    assertEquals(7L, broker.result(2).get("output"));
  }

  @Test
  void aStepWhoseSecretIsMissingFailsAndItsHandlerIsNotCalled() {
    List<Object> called = Collections.synchronizedList(new ArrayList<>());
    start(Worker.builder().secrets(name -> null), Map.of("pay", (context, in) -> called.add(1)));
    broker.step(1, "pay", "{}", CONFIG);
    Map<?, ?> result = broker.result(1);
    Map<?, ?> error = (Map<?, ?>) result.get("error");
    assertEquals("error", result.get("status"));
    assertEquals("secret_unavailable", error.get("code"));
    assertEquals(true, error.get("retryable"));
    assertEquals(
        "secret 'stripe/live': the resolver of this worker does not know it", error.get("message"));
    assertEquals(List.of(), called);
  }

  @Test
  void aLeaseThatEndsWhileASecretIsReadGivesTheStepBack() throws Exception {
    List<Object> called = Collections.synchronizedList(new ArrayList<>());
    CountDownLatch asked = new CountDownLatch(1);
    CountDownLatch gate = new CountDownLatch(1);
    SecretResolver slow =
        name -> {
          asked.countDown();
          gate.await();
          return "4929-late";
        };
    start(Worker.builder().secrets(slow), Map.of("pay", (context, input) -> called.add(1)));
    broker.step(1, "pay", "{}", CONFIG);
    asked.await();
    Map<?, ?> hello = broker.next("hello");
    while (!Map.of("b1", 2L).equals(hello.get("next"))) { // the lease of 2 s ends unacknowledged
      hello = broker.next("hello");
    }
    broker.welcome(10_000); // the broker may have given the step to another worker in between
    gate.countDown();
    assertEquals(List.of(List.of(1L, 1L)), broker.next("refuse").get("items"));
    assertEquals(List.of(), called);
  }

  @Test
  void nothingThatLeavesTheWorkerHasAValue() throws Exception {
    StringWriter logged = new StringWriter();
    java.util.logging.Handler recorder = recorder(logged);
    STEPWIRE.addHandler(recorder);
    try {
      Handler<Object> leak =
          (context, input) -> Map.of(((Map<?, ?>) input).get("card"), List.of(input));
      start(Worker.builder().secrets(secrets()), Map.of("tell", SecretsTest::tell, "leak", leak));
      broker.step(1, "tell", CONTEXT, CONFIG);
      Map<?, ?> progress = broker.next("progress");
      List<?> item = (List<?>) ((List<?>) progress.get("items")).get(0);
      assertEquals("using [secret stripe/live]", item.get(4));
      Map<?, ?> error = (Map<?, ?>) broker.result(1).get("error");
      assertEquals(
          "IllegalStateException: refused: [secret card]\nand [secret stripe/live]",
          error.get("message"));
      broker.step(2, "leak", CONTEXT, CONFIG);
      Map<?, ?> output = (Map<?, ?>) broker.result(2).get("output");
      assertEquals("[secret card]", output.keySet().iterator().next());
      String everything = Json.text(error) + Json.text(output) + logged;
      assertTrue(everything.contains("has [secret card]"), everything);
      assertFalse(everything.contains(KEY) || everything.contains(CARD), everything);
    } finally {
      STEPWIRE.removeHandler(recorder);
    }
  }

  private static Object tell(Context context, Object input) throws InterruptedException {
    Object key = ((Map<?, ?>) context.config()).get("key");
    Object card = ((Map<?, ?>) input).get("card");
    context.progress(1, 2, "using " + key);
    StepLogger log = context.log();
    log.info("has " + card);
    log.error("failed", new IOException("of " + key));
    Thread.sleep(300);
    Throwable cause = new IllegalArgumentException("cause " + card);
    throw new IllegalStateException("refused: " + card + "\nand " + key, cause);
  }

  private static java.util.logging.Handler recorder(StringWriter written) {
    return new java.util.logging.Handler() {
      {
        setLevel(Level.ALL);
      }

      @Override
      public void publish(LogRecord record) {
        PrintWriter out = new PrintWriter(written);
        out.println(record.getMessage());
        if (record.getThrown() != null) {
          record.getThrown().printStackTrace(out);
        }
      }

      @Override
      public void flush() {}

      @Override
      public void close() {}
    };
  }

  @Test
  void aTestedHandlerReceivesTheValuesThatTheTestPasses() {
    Map<String, Object> config =
        Map.of("key", Map.of("$secret", "stripe/live"), "pin", Map.of("$secret", "pin"));
    Handler<Object> leak =
        (context, input) -> {
          Map<?, ?> seen = (Map<?, ?>) context.config();
          return List.of("Bearer " + seen.get("key"), seen.get("pin"));
        };
    Outcome outcome =
        Testing.handler(Object.class, leak)
            .config(config)
            .secrets(Map.of("stripe/live", KEY, "pin", "47x1"))
            .run();
    assertEquals(List.of("Bearer [secret stripe/live]", "47x1"), outcome.output());
  }
}
