package io.stepwire;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.zeromq.ZMQ;

/**
 * The CURVE keys of a worker: the broker's public key and the worker's own pair, each 40 characters
 * of Z85. They come from STEPWIRE_CURVE_SERVER_KEY, STEPWIRE_CURVE_PUBLIC_KEY and
 * STEPWIRE_CURVE_SECRET_KEY, or from the file that STEPWIRE_CURVE_FILE names.
 */
public record CurveKeys(String serverKey, String publicKey, String secretKey) {
  private static final String SERVER = "STEPWIRE_CURVE_SERVER_KEY";
  private static final String PUBLIC = "STEPWIRE_CURVE_PUBLIC_KEY";
  private static final String SECRET = "STEPWIRE_CURVE_SECRET_KEY";
  private static final String FILE = "STEPWIRE_CURVE_FILE";
  private static final int KEY_BYTES = 32;
  private static final Pattern Z85 =
      Pattern.compile("[0-9A-Za-z.\\-:+=^!/*?&<>()\\[\\]{}@%$#]{40}");
  private static final Pattern LINE =
      Pattern.compile("(?:export\\s+)?([A-Z_]+)\\s*=\\s*(['\"]?)(.*?)\\2");

  /** Checks the keys. Throws {@link ConfigurationError}, whose message never has a secret key. */
  public CurveKeys {
    check(SERVER, serverKey);
    check(PUBLIC, publicKey);
    check(SECRET, secretKey);
    if (!Arrays.equals(decode(publicKey), CurvePair.publicKeyOf(decode(secretKey)))) {
      throw new ConfigurationError(
          PUBLIC + " does not belong to " + SECRET + ": take both from one key pair");
    }
  }

  /** Null if the environment has no keys. */
  static CurveKeys read(Map<String, String> environ) {
    Map<String, String> keys = new LinkedHashMap<>();
    String file = Environment.get(environ, FILE, null);
    if (file != null) {
      keys.putAll(readFile(Path.of(file)));
    }
    for (String name : new String[] {SERVER, PUBLIC, SECRET}) {
      String value = Environment.get(environ, name, null);
      if (value != null) {
        keys.put(name, value);
      }
    }
    if (keys.isEmpty() && file == null) {
      return null;
    }
    for (String name : new String[] {SERVER, PUBLIC, SECRET}) {
      if (!keys.containsKey(name)) {
        throw new ConfigurationError(
            name
                + " is missing: CURVE needs "
                + SERVER
                + ", "
                + PUBLIC
                + " and "
                + SECRET
                + ", as variables or in the file that "
                + FILE
                + " names");
      }
    }
    return new CurveKeys(keys.get(SERVER), keys.get(PUBLIC), keys.get(SECRET));
  }

  /** The 32 bytes of a key. */
  public static byte[] decode(String key) {
    return ZMQ.Curve.z85Decode(key);
  }

  private static Map<String, String> readFile(Path file) {
    String subject = FILE + " is '" + file + "': ";
    Map<String, String> keys = new LinkedHashMap<>();
    try {
      if (isUsableByOthers(file)) {
        throw new ConfigurationError(
            subject
                + "its group or others may use this file, and it holds a secret key: chmod 600 "
                + file);
      }
      for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
        Matcher member = LINE.matcher(line.strip());
        if (member.matches() && member.group(1).startsWith("STEPWIRE_CURVE_")) {
          keys.put(member.group(1), member.group(3));
        }
      }
    } catch (NoSuchFileException absent) {
      throw new ConfigurationError(subject + "it cannot be read: No such file or directory");
    } catch (IOException fault) {
      throw new ConfigurationError(subject + "it cannot be read: " + fault.getMessage());
    }
    return keys;
  }

  private static boolean isUsableByOthers(Path file) throws IOException {
    return Files.getPosixFilePermissions(file).stream()
        .anyMatch(permission -> !permission.name().startsWith("OWNER_"));
  }

  private static void check(String name, String key) {
    boolean isKey = key != null && Z85.matcher(key).matches() && decodedLength(key) == KEY_BYTES;
    if (!isKey) {
      int length = key == null ? 0 : key.length();
      throw new ConfigurationError(
          name + " is no key: it needs 40 characters of Z85, and has " + length + " characters");
    }
  }

  private static int decodedLength(String key) {
    byte[] bytes = decode(key);
    return bytes == null ? 0 : bytes.length;
  }

  @Override
  public String toString() {
    return "CurveKeys[" + publicKey + "]"; // never the secret key
  }
}
