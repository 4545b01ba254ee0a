package io.stepwire.protocol;

/** Doubles in the shortest form that JSON encoders of other languages write: 0.001, 1e16, 12.5. */
final class Doubles {
  private static final int FIXED_MAX = 16;
  private static final int FIXED_MIN = -5;

  private Doubles() {}

  static String text(double value) {
    String java = Double.toString(Math.abs(value));
    int e = java.indexOf('E');
    String mantissa = e < 0 ? java : java.substring(0, e);
    int exponent = e < 0 ? 0 : Integer.parseInt(java.substring(e + 1));
    int point = mantissa.indexOf('.');
    String digits = mantissa.substring(0, point) + mantissa.substring(point + 1);
    int before = point + exponent; // digits before the decimal point
    int from = 0;
    while (from < digits.length() - 1 && digits.charAt(from) == '0') {
      from++;
      before--;
    }
    int to = digits.length();
    while (to > from + 1 && digits.charAt(to - 1) == '0') {
      to--;
    }
    String sign = 1 / value < 0 || value < 0 ? "-" : "";
    return sign + (value == 0 ? "0.0" : placed(digits.substring(from, to), before));
  }

  private static String placed(String digits, int before) {
    int count = digits.length();
    if (before >= count && before <= FIXED_MAX) {
      return digits + "0".repeat(before - count) + ".0";
    }
    if (before > 0 && before <= FIXED_MAX) {
      return digits.substring(0, before) + "." + digits.substring(before);
    }
    if (before > FIXED_MIN && before <= 0) {
      return "0." + "0".repeat(-before) + digits;
    }
    String rest = count == 1 ? "" : "." + digits.substring(1);
    return digits.charAt(0) + rest + "e" + (before - 1);
  }
}
