package io.stepwire.session;

import io.stepwire.protocol.Patterns;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The worker's offers by number, and the offer for each handler_class. */
public final class Offers {
  private static final int CLASSES_MAX = 10_000; // handler classes whose offer is remembered

  private final List<Offer> byNumber;
  private final Map<String, Integer> numberOf = new HashMap<>();

  public Offers(List<Offer> offers) {
    byNumber = offers;
  }

  List<Offer> byNumber() {
    return byNumber;
  }

  /** The number of the offer for this handler_class; -1 if no offer matches. */
  int find(String handlerClass) {
    Integer known = numberOf.get(handlerClass);
    if (known == null) {
      if (numberOf.size() >= CLASSES_MAX) {
        numberOf.clear();
      }
      known = find(byNumber, handlerClass);
      numberOf.put(handlerClass, known);
    }
    return known;
  }

  /** The number of the offer with this exact name, otherwise of the first pattern that matches. */
  public static int find(List<Offer> offers, String handlerClass) {
    int firstMatch = -1;
    for (int i = 0; i < offers.size(); i++) {
      String pattern = offers.get(i).pattern();
      if (pattern.equals(handlerClass)) {
        return i;
      }
      if (firstMatch < 0
          && Patterns.isPattern(pattern)
          && Patterns.matches(pattern, handlerClass)) {
        firstMatch = i;
      }
    }
    return firstMatch;
  }
}
