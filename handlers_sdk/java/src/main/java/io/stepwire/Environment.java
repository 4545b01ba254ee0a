package io.stepwire;

import io.stepwire.protocol.Limits;
import io.stepwire.session.Link;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The environment variables STEPWIRE_*, and checks of settings, because JeroMQ ignores some wrong
 * endpoints in silence.
 */
final class Environment {
  static final String STEPS_DEFAULT = "tcp://127.0.0.1:7411";
  static final String RESULTS_DEFAULT = "tcp://127.0.0.1:7412";
  static final int SLOTS_DEFAULT = 10;
  private static final int SLOTS_MAX = 10_000;
  private static final Pattern NAME = Pattern.compile("[A-Za-z0-9._-]{1,48}");
  private static final Pattern ADDRESS =
      Pattern.compile("(\\[[^\\]]*\\]|[^:\\[\\]]*)(?::(.*))?", Pattern.DOTALL);
  private static final int PORT_MAX = 65_535;
  private static final int LABEL_CHARS_MAX = 128;

  private Environment() {}

  static String get(Map<String, String> environ, String name, String standard) {
    String value = environ.get(name);
    return value == null || value.isEmpty() ? standard : value;
  }

  static List<String> list(String text) {
    return Arrays.stream(text.split(",")).map(String::strip).filter(s -> !s.isEmpty()).toList();
  }

  static int slots(String text) {
    if (!text.matches("[0-9]{1,6}")) {
      throw new ConfigurationError(
          "STEPWIRE_SLOTS is "
              + Texts.quoted(text)
              + ": it needs a whole number, 1 to "
              + SLOTS_MAX);
    }
    return checkSlots(Integer.parseInt(text));
  }

  static Map<String, String> labels(String text) {
    Map<String, String> labels = new LinkedHashMap<>();
    for (String part : list(text)) {
      int equals = part.indexOf('=');
      String key = equals < 0 ? "" : part.substring(0, equals).strip();
      if (key.isEmpty() || key.length() > LABEL_CHARS_MAX) {
        throw new ConfigurationError(
            "STEPWIRE_LABELS has "
                + Texts.quoted(part)
                + ": it needs a form like region=eu,gpu=true");
      }
      labels.put(key, part.substring(equals + 1).strip());
    }
    return labels;
  }

  /** The endpoints in pairs, one pair for each broker. */
  static List<Link> links(List<String> steps, List<String> results) {
    if (steps.isEmpty() || steps.size() != results.size()) {
      throw new ConfigurationError(
          steps.size()
              + " endpoints for steps and "
              + results.size()
              + " for results: each broker needs one of each, in the same order (STEPWIRE_STEPS,"
              + " STEPWIRE_RESULTS; separate several with commas)");
    }
    List<Link> links = new ArrayList<>();
    for (int i = 0; i < steps.size(); i++) {
      checkEndpoint("steps", STEPS_DEFAULT, steps.get(i));
      checkEndpoint("results", RESULTS_DEFAULT, results.get(i));
      links.add(new Link(steps.get(i), results.get(i)));
    }
    return links;
  }

  static String checkName(String name) {
    if (!NAME.matcher(name).matches()) {
      throw new ConfigurationError(
          "worker name "
              + Texts.quoted(name)
              + ": it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)");
    }
    return name;
  }

  static int checkSlots(int slots) {
    if (slots < 1 || slots > SLOTS_MAX) {
      throw new ConfigurationError(
          "slots is " + slots + ": it needs to be 1 to " + SLOTS_MAX + " (STEPWIRE_SLOTS)");
    }
    return slots;
  }

  static String checkHandlerVersion(String version) {
    int characters = version.codePointCount(0, version.length());
    if (characters > Limits.HANDLER_VERSION_MAX) {
      throw new ConfigurationError(
          "handler_version has "
              + characters
              + " characters: it needs at most "
              + Limits.HANDLER_VERSION_MAX
              + " (STEPWIRE_HANDLER_VERSION)");
    }
    return version;
  }

  private static void checkEndpoint(String kind, String example, String endpoint) {
    String subject = "the " + kind + " endpoint " + Texts.quoted(endpoint);
    int at = endpoint.indexOf("://");
    if (at < 0 || at + 3 == endpoint.length()) {
      throw new ConfigurationError(subject + " needs a form like " + example);
    }
    String scheme = endpoint.substring(0, at);
    switch (scheme) {
      case "tcp" -> checkTcp(subject, endpoint.substring(at + 3));
      case "ipc" ->
          throw new ConfigurationError(
              subject
                  + " is a Unix socket, which JeroMQ cannot connect to: use the broker's tcp"
                  + " listener, "
                  + example);
      case "inproc" ->
          throw new ConfigurationError(
              subject + " reaches only a broker in the same process: use tcp://");
      default ->
          throw new ConfigurationError(
              subject + ": " + scheme + ":// is not supported; use tcp://");
    }
  }

  private static void checkTcp(String subject, String address) {
    Matcher parts = ADDRESS.matcher(address);
    boolean hasForm = parts.matches();
    String host = hasForm ? parts.group(1) : "";
    String port = hasForm ? parts.group(2) : null;
    if (port == null || port.isEmpty() || port.equals("0")) {
      throw new ConfigurationError(subject + " has no port: it needs a form like " + STEPS_DEFAULT);
    }
    if (!port.matches("[0-9]{1,5}") || Integer.parseInt(port) > PORT_MAX) {
      throw new ConfigurationError(
          subject + ": the port " + Texts.quoted(port) + " needs to be 1 to " + PORT_MAX);
    }
    if (host.isEmpty() || host.equals("*") || host.equals("[]")) {
      throw new ConfigurationError(
          subject + " names no host: a worker connects, and only a broker may bind to *");
    }
  }
}
