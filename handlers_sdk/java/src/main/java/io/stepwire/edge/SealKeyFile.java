package io.stepwire.edge;

import io.stepwire.ConfigurationError;
import io.stepwire.Texts;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads the file that STEPWIRE_SEAL_KEYS_FILE names. No error names a key. */
final class SealKeyFile {
  static final String FILE = "STEPWIRE_SEAL_KEYS_FILE";
  private static final int BYTES_MAX = 64 * 1024;
  private static final int KEYS_MAX = 100;
  private static final int FOR_OTHERS = 077;
  private static final Pattern LINE =
      Pattern.compile("([A-Za-z0-9._-]{1,64})=([A-Za-z0-9+/]{43}=)");

  private SealKeyFile() {}

  /** The keys of a file, by {@code kid}, in its order. Throws {@link ConfigurationError}. */
  static Map<String, byte[]> read(String path) {
    String subject = FILE + " is " + Texts.repr(path);
    Map<String, byte[]> keys = new LinkedHashMap<>();
    int number = 0;
    for (String line : textOf(subject, path).split("\r\n|\n|\r")) {
      number++;
      if (line.isBlank() || line.startsWith("#")) {
        continue;
      }
      Matcher found = LINE.matcher(line.strip());
      if (!found.matches()) {
        throw new ConfigurationError(
            FILE
                + ": line "
                + number
                + " of "
                + Texts.repr(path)
                + " is not KID=KEY, with a key of 32 random bytes in Base64, as made by: openssl"
                + " rand -base64 32");
      }
      byte[] before = keys.put(found.group(1), Base64.getDecoder().decode(found.group(2)));
      if (before != null) {
        String kid = Texts.repr(found.group(1));
        throw new ConfigurationError(
            FILE + ": " + Texts.repr(path) + " has two keys with the name " + kid);
      }
    }
    if (keys.isEmpty() || keys.size() > KEYS_MAX) {
      throw new ConfigurationError(
          subject + ": it needs 1 to " + KEYS_MAX + " keys, and has " + keys.size());
    }
    return keys;
  }

  private static String textOf(String subject, String path) {
    try {
      Path real = Path.of(path).toRealPath();
      check(subject, path, PrivateFiles.of(real));
      byte[] content = Files.readAllBytes(real);
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
    } catch (CharacterCodingException fault) {
      throw new ConfigurationError(subject + ": it cannot be read: it is no text");
    } catch (IOException fault) {
      throw new ConfigurationError(
          subject + ": it cannot be read: " + PrivateFiles.reasonOf(fault));
    }
  }

  private static void check(String subject, String path, PrivateFiles facts) {
    if (facts.isDirectory()) {
      throw new ConfigurationError(subject + ": it cannot be read: Is a directory");
    }
    if (!facts.isFile()) {
      throw new ConfigurationError(subject + ": it is no regular file");
    }
    if (!facts.isOwn()) {
      throw new ConfigurationError(subject + ": it belongs to another user");
    }
    if ((facts.mode() & FOR_OTHERS) != 0) {
      throw new ConfigurationError(
          subject + ": its group or others may use it: chmod 600 " + path);
    }
    if (facts.size() > BYTES_MAX) {
      throw new ConfigurationError(subject + ": it has more than " + BYTES_MAX + " bytes");
    }
  }
}
