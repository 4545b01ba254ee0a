package io.stepwire;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;

/** The identity of this process as a worker, and the clock that measures leases. */
public final class Identity {
  private static final SecureRandom RANDOM = new SecureRandom();

  /** Fields of /proc/self/stat, counted after the name, which may contain any character. */
  private static final int STARTED = 19;

  private Identity() {}

  /**
   * The facts with which a broker on the same host can prove the death of this process. {@code
   * pidStarted} is in clock ticks after boot; 0 where there is no /proc.
   */
  public record ThisProcess(String host, long pid, long pidStarted, boolean isProvable) {}

  /** Milliseconds of a clock that only increases. */
  public static double nowMs() {
    return System.nanoTime() / 1e6;
  }

  public static ThisProcess thisProcess() {
    long pid = ProcessHandle.current().pid();
    String known = host(pid);
    long started = started();
    boolean isProvable = known != null && started > 0;
    return new ThisProcess(known == null ? unprovableHost() : known, pid, started, isProvable);
  }

  /** A new id at every call: a process that restarts is another worker. */
  public static String newWorkerId(String name) {
    return name + ":" + String.format("%016x", RANDOM.nextLong());
  }

  /** Boot id, pid namespace and time namespace; null if /proc cannot be trusted. */
  private static String host(long pid) {
    try {
      String self = Files.readSymbolicLink(Path.of("/proc/self")).toString();
      if (!self.equals(Long.toString(pid))) {
        return null; // this /proc belongs to another pid namespace
      }
      String boot = Files.readString(Path.of("/proc/sys/kernel/random/boot_id")).strip();
      Object pidNamespace = Files.getAttribute(Path.of("/proc/self/ns/pid"), "unix:ino");
      return boot + ":" + pidNamespace + ":" + timeNamespace();
    } catch (IOException | UnsupportedOperationException | IllegalArgumentException unknown) {
      return null;
    }
  }

  private static Object timeNamespace() {
    try {
      return Files.getAttribute(Path.of("/proc/self/ns/time"), "unix:ino");
    } catch (IOException absent) {
      return 0; // a kernel without time namespaces
    }
  }

  private static long started() {
    try {
      byte[] bytes = Files.readAllBytes(Path.of("/proc/self/stat"));
      String stat = new String(bytes, StandardCharsets.ISO_8859_1);
      String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
      return Long.parseLong(fields[STARTED]);
    } catch (IOException | RuntimeException unknown) {
      return 0;
    }
  }

  private static String unprovableHost() {
    String system = System.getProperty("os.name", "unknown");
    try {
      return system + ":" + InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException unknown) {
      return system + ":localhost";
    }
  }
}
