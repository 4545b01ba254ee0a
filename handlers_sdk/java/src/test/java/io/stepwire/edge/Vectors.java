package io.stepwire.edge;

import io.stepwire.protocol.Json;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;

/** The vectors of secrets and sealed payloads. */
final class Vectors {
  private static final Path FOLDER = Path.of("../../protocol/vectors");

  private Vectors() {}

  @SuppressWarnings("unchecked")
  static List<Map<String, Object>> list(String file, String name) {
    try {
      Map<?, ?> all = (Map<?, ?>) Json.parse(Files.readAllBytes(FOLDER.resolve(file)));
      return (List<Map<String, Object>>) all.get(name);
    } catch (IOException fault) {
      throw new UncheckedIOException(fault);
    }
  }

  static Stream<DynamicTest> tests(String file, String name, Consumer<Map<String, Object>> check) {
    return list(file, name).stream()
        .map(
            vector ->
                DynamicTest.dynamicTest(
                    String.valueOf(vector.getOrDefault("name", vector)),
                    () -> check.accept(vector)));
  }

  /** Sets the nine bits of a mode like {@code 0640}; the sticky bit by the system's own program. */
  static void chmod(String mode, Path path) throws IOException, InterruptedException {
    int bits = Integer.parseInt(mode, 8);
    if (bits > 0777) {
      new ProcessBuilder("chmod", mode, path.toString()).start().waitFor();
      return;
    }
    PosixFilePermission[] all = PosixFilePermission.values(); // owner, group, others: r, w, x
    Set<PosixFilePermission> permissions = EnumSet.noneOf(PosixFilePermission.class);
    for (int i = 0; i < all.length; i++) {
      if ((bits & 0400 >> i) != 0) {
        permissions.add(all[i]);
      }
    }
    Files.setPosixFilePermissions(path, permissions);
  }
}
