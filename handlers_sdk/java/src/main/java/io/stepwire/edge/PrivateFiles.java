package io.stepwire.edge;

import com.sun.security.auth.module.UnixSystem;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;

/** The owner and the mode of a file, and the system's texts of errors. */
record PrivateFiles(int mode, int owner, boolean isFile, boolean isDirectory, long size) {
  private static final int ROOT = 0;
  private static final int PERMISSIONS = 07777;

  /** The facts of the file at this path, which is no link. */
  static PrivateFiles of(Path path) throws IOException {
    Map<String, Object> facts =
        Files.readAttributes(
            path, "unix:mode,uid,isRegularFile,isDirectory,size", LinkOption.NOFOLLOW_LINKS);
    return new PrivateFiles(
        (int) facts.get("mode") & PERMISSIONS,
        (int) facts.get("uid"),
        (boolean) facts.get("isRegularFile"),
        (boolean) facts.get("isDirectory"),
        (long) facts.get("size"));
  }

  /** True if this user or root owns the file. */
  boolean isOwn() {
    return owner == ROOT || owner == user();
  }

  private static int user() {
    try { // the effective user, on Linux
      return (int) Files.getAttribute(Path.of("/proc/self"), "unix:uid");
    } catch (IOException | UnsupportedOperationException | IllegalArgumentException absent) {
      return (int) new UnixSystem().getUid();
    }
  }

  /** The system's text of an error, as other languages have it. */
  static String reasonOf(IOException fault) {
    if (fault instanceof NoSuchFileException) {
      return "No such file or directory";
    }
    if (fault instanceof AccessDeniedException) {
      return "Permission denied";
    }
    boolean hasReason = fault instanceof FileSystemException known && known.getReason() != null;
    return hasReason ? ((FileSystemException) fault).getReason() : fault.getMessage();
  }
}
