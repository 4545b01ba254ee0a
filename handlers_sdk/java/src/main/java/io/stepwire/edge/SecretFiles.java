package io.stepwire.edge;

import io.stepwire.Texts;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/**
 * Reads the value of a secret from a file in STEPWIRE_SECRETS_DIR: {@code stripe/live} is the file
 * {@code stripe/live} in there.
 *
 * <p>Symbolic links may lead to files inside the directory, as Kubernetes makes them, and nowhere
 * else.
 */
final class SecretFiles {
  private static final int VALUE_BYTES_MAX = 64 * 1024;
  private static final int WRITABLE = 022;
  private static final int FOR_OTHERS = 027;
  private static final int STICKY = 01000;

  private SecretFiles() {}

  /**
   * The value of the secret with this name, which has the form of a reference. Throws {@link
   * SecretUnavailable}. One line end at the end of the file is not part of the value.
   */
  static String read(String directory, String name) {
    String secret = "secret " + Texts.repr(name);
    Path root = checkedDirectory(directory);
    String where = secret + ": its file in " + directory;
    try {
      Path path = root.resolve(name).toRealPath();
      if (!path.startsWith(root)) {
        throw new SecretUnavailable(
            secret + ": its file is a link that leads out of " + directory);
      }
      checkFile(where, PrivateFiles.of(path));
      try (InputStream file = Files.newInputStream(path, LinkOption.NOFOLLOW_LINKS)) {
        return valueOf(name, file.readNBytes(VALUE_BYTES_MAX + 1));
      }
    } catch (NoSuchFileException absent) {
      throw new SecretUnavailable(secret + ": there is no such file in " + directory);
    } catch (IOException fault) {
      throw new SecretUnavailable(where + " cannot be read: " + PrivateFiles.reasonOf(fault));
    }
  }

  /** The value that the content of a file means. Throws {@link SecretUnavailable}. */
  static String valueOf(String name, byte[] content) {
    String secret = "secret " + Texts.repr(name);
    if (content.length > VALUE_BYTES_MAX) {
      throw new SecretUnavailable(
          secret + ": its file has more than " + VALUE_BYTES_MAX + " bytes");
    }
    String text;
    try {
      text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
    } catch (CharacterCodingException fault) {
      throw new SecretUnavailable(
          secret + ": its file is no UTF-8 text; store binary data as Base64");
    }
    if (text.endsWith("\n")) {
      text = text.substring(0, text.length() - (text.endsWith("\r\n") ? 2 : 1));
    }
    if (text.isEmpty()) {
      throw new SecretUnavailable(secret + ": its file is empty");
    }
    return text;
  }

  /** The directory without links, checked. */
  private static Path checkedDirectory(String directory) {
    String subject = "the directory of secrets " + Texts.repr(directory);
    Path root;
    PrivateFiles facts;
    try {
      root = Path.of(directory).toRealPath();
      facts = PrivateFiles.of(root);
    } catch (IOException fault) {
      throw new SecretUnavailable(subject + " cannot be read: " + PrivateFiles.reasonOf(fault));
    }
    if (!facts.isDirectory()) {
      throw new SecretUnavailable(subject + " is no directory");
    }
    if (!facts.isOwn()) {
      throw new SecretUnavailable(subject + " belongs to another user: chown it");
    }
    boolean isProtected =
        (facts.mode() & WRITABLE) == 0
            || (facts.mode() & STICKY) != 0; // sticky: only owners replace files
    if (!isProtected) {
      throw new SecretUnavailable("other users may write " + subject + ": chmod 700 " + directory);
    }
    return root;
  }

  private static void checkFile(String where, PrivateFiles facts) {
    if (!facts.isFile()) {
      throw new SecretUnavailable(where + " is no regular file");
    }
    if (!facts.isOwn()) {
      throw new SecretUnavailable(where + " belongs to another user: chown it");
    }
    if ((facts.mode() & FOR_OTHERS) != 0) {
      String mode = String.format("%04o", facts.mode());
      throw new SecretUnavailable(
          where + " has the mode " + mode + ", so other users may use it: chmod 600, or 400");
    }
  }
}
