package io.stepwire.protocol;

import java.util.ArrayList;
import java.util.List;

/**
 * Patterns for names of {@code ::}-separated segments. {@code *} as a segment matches exactly one
 * segment, {@code **} any number of segments, and {@code *} inside a segment any number of its
 * characters; everything else is literal. The matcher keeps only one position to return to, so its
 * time is at most the length of the pattern times the length of the name, even for a hostile
 * pattern.
 */
public final class Patterns {
  private static final String SEPARATOR = "::";
  private static final String ANY = "**";

  private Patterns() {}

  /** True if the text can match more than one name. */
  public static boolean isPattern(String text) {
    return text.indexOf('*') >= 0;
  }

  public static boolean matches(String pattern, String name) {
    List<String> globs = new ArrayList<>();
    for (String segment : split(pattern, SEPARATOR)) {
      boolean isRepeatedAny =
          segment.equals(ANY) && !globs.isEmpty() && globs.get(globs.size() - 1).equals(ANY);
      if (!isRepeatedAny) { // `**::**` is `**`
        globs.add(segment);
      }
    }
    List<String> segments = split(name, SEPARATOR);
    int at = 0;
    int taken = 0;
    int backTo = -1; // the last `**`: after a mismatch, it matches one more segment
    int backTaken = 0;
    while (taken < segments.size()) {
      if (at < globs.size() && globs.get(at).equals(ANY)) {
        backTo = at;
        backTaken = taken;
        at++;
      } else if (at < globs.size() && segmentMatches(globs.get(at), segments.get(taken))) {
        at++;
        taken++;
      } else if (backTo >= 0) {
        backTaken++;
        at = backTo + 1;
        taken = backTaken;
      } else {
        return false;
      }
    }
    return globs.subList(at, globs.size()).stream().allMatch(ANY::equals);
  }

  /**
   * Matches the first and the last piece at the ends, and each other piece at the leftmost position
   * between them.
   */
  private static boolean segmentMatches(String glob, String segment) {
    List<String> pieces = split(glob, "*");
    if (pieces.size() == 1) {
      return segment.equals(glob);
    }
    String first = pieces.get(0);
    String last = pieces.get(pieces.size() - 1);
    int end = segment.length() - last.length();
    if (end < first.length() || !segment.startsWith(first) || !segment.endsWith(last)) {
      return false;
    }
    int at = first.length();
    for (String piece : pieces.subList(1, pieces.size() - 1)) {
      int start = segment.indexOf(piece, at);
      if (start < 0 || start + piece.length() > end) {
        return false;
      }
      at = start + piece.length();
    }
    return true;
  }

  private static List<String> split(String text, String separator) {
    List<String> parts = new ArrayList<>();
    int from = 0;
    int at = text.indexOf(separator);
    while (at >= 0) {
      parts.add(text.substring(from, at));
      from = at + separator.length();
      at = text.indexOf(separator, from);
    }
    parts.add(text.substring(from));
    return parts;
  }
}
