package io.stepwire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.stepwire.session.Link;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.zeromq.ZMQ;

class EnvironmentTest {
  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "STEPWIRE_STEPS|ipc://.stepwire/steps.sock|the steps endpoint 'ipc://.stepwire/steps.sock'"
            + " is a Unix socket, which JeroMQ cannot connect to: use the broker's tcp listener,"
            + " tcp://127.0.0.1:7411",
        "STEPWIRE_RESULTS|ipc:///tmp/r|the results endpoint 'ipc:///tmp/r' is a Unix socket, which"
            + " JeroMQ cannot connect to: use the broker's tcp listener, tcp://127.0.0.1:7412",
        "STEPWIRE_STEPS|tcp//:1|the steps endpoint 'tcp//:1' needs a form like"
            + " tcp://127.0.0.1:7411",
        "STEPWIRE_STEPS|tcp://localhost|the steps endpoint 'tcp://localhost' has no port: it needs"
            + " a form like tcp://127.0.0.1:7411",
        "STEPWIRE_STEPS|tcp://h:99999|the steps endpoint 'tcp://h:99999': the port '99999' needs"
            + " to be 1 to 65535",
        "STEPWIRE_STEPS|tcp://*:7411|the steps endpoint 'tcp://*:7411' names no host: a worker"
            + " connects, and only a broker may bind to *",
        "STEPWIRE_STEPS|udp://h:1|the steps endpoint 'udp://h:1': udp:// is not supported; use"
            + " tcp://",
        "STEPWIRE_STEPS|tcp://a:1,tcp://b:1|2 endpoints for steps and 1 for results: each broker"
            + " needs one of each, in the same order (STEPWIRE_STEPS, STEPWIRE_RESULTS; separate"
            + " several with commas)",
        "STEPWIRE_NAME|a b|worker name 'a b': it needs 1 to 48 of letters, digits, . _ -"
            + " (STEPWIRE_NAME)",
        "STEPWIRE_SLOTS|ten|STEPWIRE_SLOTS is 'ten': it needs a whole number, 1 to 10000",
        "STEPWIRE_SLOTS|0|slots is 0: it needs to be 1 to 10000 (STEPWIRE_SLOTS)",
        "STEPWIRE_LABELS|eu|STEPWIRE_LABELS has 'eu': it needs a form like region=eu,gpu=true",
      })
  void aWrongSettingIsNamedWithWhatToDo(String name, String value, String sentence) {
    ConfigurationError error =
        assertThrows(
            ConfigurationError.class, () -> Worker.builder().fromEnv(Map.of(name, value)).build());
    assertEquals(sentence, error.getMessage());
  }

  @Test
  void severalBrokersAreListedInPairs() {
    WorkerBuilder builder =
        Worker.builder()
            .fromEnv(
                Map.of(
                    "STEPWIRE_STEPS", "tcp://a:1, tcp://[::1]:2",
                    "STEPWIRE_RESULTS", "tcp://a:3,tcp://[::1]:4",
                    "STEPWIRE_LABELS", "region=eu,gpu=true",
                    "STEPWIRE_NAME", "shop-1"));
    builder.build();
    assertEquals(
        List.of(new Link("tcp://a:1", "tcp://a:3"), new Link("tcp://[::1]:2", "tcp://[::1]:4")),
        builder.links);
    assertEquals(Map.of("region", "eu", "gpu", "true"), builder.labels);
  }

  @Test
  void theDefaultsAreTheTcpListenersOfABroker() {
    WorkerBuilder builder = Worker.builder().fromEnv(Map.of());
    builder.build();
    assertEquals(List.of(new Link("tcp://127.0.0.1:7411", "tcp://127.0.0.1:7412")), builder.links);
    assertEquals(10, builder.slots);
  }

  // -- keys ---------------------------------------------------------------------------------------

  private static Map<String, String> keys() {
    ZMQ.Curve.KeyPair server = ZMQ.Curve.generateKeyPair();
    ZMQ.Curve.KeyPair own = ZMQ.Curve.generateKeyPair();
    Map<String, String> keys = new HashMap<>();
    keys.put("STEPWIRE_CURVE_SERVER_KEY", server.publicKey);
    keys.put("STEPWIRE_CURVE_PUBLIC_KEY", own.publicKey);
    keys.put("STEPWIRE_CURVE_SECRET_KEY", own.secretKey);
    return keys;
  }

  @Test
  void keysAreReadFromTheEnvironment() {
    Map<String, String> keys = keys();
    CurveKeys read = CurveKeys.read(keys);
    assertEquals(keys.get("STEPWIRE_CURVE_SECRET_KEY"), read.secretKey());
    assertTrue(!read.toString().contains(read.secretKey()));
  }

  @Test
  void aMissingKeyIsNamed() {
    Map<String, String> keys = keys();
    keys.remove("STEPWIRE_CURVE_SECRET_KEY");
    assertEquals(
        "STEPWIRE_CURVE_SECRET_KEY is missing: CURVE needs STEPWIRE_CURVE_SERVER_KEY,"
            + " STEPWIRE_CURVE_PUBLIC_KEY and STEPWIRE_CURVE_SECRET_KEY, as variables or in the"
            + " file that STEPWIRE_CURVE_FILE names",
        assertThrows(ConfigurationError.class, () -> CurveKeys.read(keys)).getMessage());
  }

  @Test
  void aKeyOfAnotherLengthIsRefused() {
    Map<String, String> keys = keys();
    keys.put("STEPWIRE_CURVE_PUBLIC_KEY", "short");
    assertEquals(
        "STEPWIRE_CURVE_PUBLIC_KEY is no key: it needs 40 characters of Z85, and has 5"
            + " characters",
        assertThrows(ConfigurationError.class, () -> CurveKeys.read(keys)).getMessage());
  }

  @Test
  void aPublicKeyOfAnotherPairIsRefused() {
    Map<String, String> keys = keys();
    keys.put("STEPWIRE_CURVE_PUBLIC_KEY", ZMQ.Curve.generateKeyPair().publicKey);
    assertEquals(
        "STEPWIRE_CURVE_PUBLIC_KEY does not belong to STEPWIRE_CURVE_SECRET_KEY: take both from"
            + " one key pair",
        assertThrows(ConfigurationError.class, () -> CurveKeys.read(keys)).getMessage());
  }

  @Test
  void aFileOfKeysIsReadAndVariablesWin(@TempDir Path folder) throws IOException {
    Map<String, String> keys = keys();
    Path file = folder.resolve("keys");
    StringBuilder lines = new StringBuilder("# keys\n");
    keys.forEach((name, key) -> lines.append("export " + name + "='" + key + "'\n"));
    Files.writeString(file, lines);
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    String other = ZMQ.Curve.generateKeyPair().publicKey;
    CurveKeys read =
        CurveKeys.read(
            Map.of("STEPWIRE_CURVE_FILE", file.toString(), "STEPWIRE_CURVE_SERVER_KEY", other));
    assertEquals(other, read.serverKey());
    assertEquals(keys.get("STEPWIRE_CURVE_PUBLIC_KEY"), read.publicKey());
  }

  @Test
  void aFileOfKeysThatOthersMayUseIsRefused(@TempDir Path folder) throws IOException {
    Path file = Files.writeString(folder.resolve("keys"), "");
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-r-----"));
    assertEquals(
        "STEPWIRE_CURVE_FILE is '"
            + file
            + "': its group or others may use this file, and it holds a secret key: chmod 600 "
            + file,
        assertThrows(
                ConfigurationError.class,
                () -> CurveKeys.read(Map.of("STEPWIRE_CURVE_FILE", file.toString())))
            .getMessage());
  }
}
