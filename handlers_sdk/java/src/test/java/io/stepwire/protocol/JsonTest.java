package io.stepwire.protocol;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class JsonTest {
  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "{\"a\":1,\"a\":2}|duplicate_key",
        "{\"a\":1,\"\\u0061\":2}|duplicate_key",
        "[\"\\u0000\"]|nul_character",
        "[\"\\ud800\"]|lone_surrogate",
        "[\"\\udc00\"]|lone_surrogate",
        "[\"\\ud800x\"]|lone_surrogate",
        "[9007199254740992]|integer_out_of_range",
        "[-9007199254740992]|integer_out_of_range",
        "[123456789012345678901234567890]|integer_out_of_range",
        "[1e999]|number_out_of_range",
        "[NaN]|not_a_number",
        "[-Infinity]|not_a_number",
        "[01]|not_json",
        "[1.]|not_json",
        "[.5]|not_json",
        "[1e]|not_json",
        "[1,]|not_json",
        "[,1]|not_json",
        "{\"a\":1,}|not_json",
        "{\"a\" 1}|not_json",
        "{a:1}|not_json",
        "[1 2]|not_json",
        "[\"\\x\"]|not_json",
        "[\"a|not_json",
        "[tru]|not_json",
        "[1]]|not_json",
        "[|not_json",
        "[\"\\u12\"]|not_json",
      })
  void aTextThatBreaksARuleIsRefusedWithItsCode(String text, String code) {
    assertEquals(code, assertThrows(InvalidMessage.class, () -> Json.parse(text)).code());
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "{}",
        "[]",
        "null",
        "[9007199254740991,-9007199254740991]",
        "[0.001,1e16,1.5e-7,12.5,-0.0,100.0]",
        "{\"a\":{\"b\":[1,true,false,null]},\"ä\":\"😀€\"}",
        "[\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\"]",
      })
  void aTextIsWrittenAsItWasRead(String text) {
    assertEquals(text, Json.text(Json.parse(text)));
  }

  @Test
  void whiteSpaceAndEscapesAreRead() {
    assertEquals(
        Map.of("a/b", List.of(1L, "😀")),
        Json.parse(" { \"a\\/b\" : [ 1 ,\n\t\"\\ud83d\\ude00\" ] } "));
  }

  @Test
  void aNestingOf32IsReadAndOneOf33Refused() {
    Json.parse("[".repeat(32) + "]".repeat(32));
    String deep = "[".repeat(33) + "]".repeat(33);
    assertEquals("too_deep", assertThrows(InvalidMessage.class, () -> Json.parse(deep)).code());
  }

  @Test
  void invalidUtf8IsRefused() {
    byte[] bytes = {'[', '"', (byte) 0xC3, (byte) 0x28, '"', ']'};
    assertEquals("not_utf8", assertThrows(InvalidMessage.class, () -> Json.parse(bytes)).code());
  }

  @Test
  void anOutputHasRoomFor29LevelsInsideItsMessage() {
    Object fits = List.of();
    for (int i = 1; i < 29; i++) {
      fits = List.of(fits);
    }
    Json.encodeOutput(fits);
    Object deep = List.of(fits);
    assertThrows(InvalidMessage.class, () -> Json.encodeOutput(deep));
  }

  @Test
  void anOutputThatContainsItselfIsRefused() {
    List<Object> endless = new ArrayList<>();
    endless.add(endless);
    assertThrows(InvalidMessage.class, () -> Json.encodeOutput(endless));
  }

  @Test
  void whatNoLanguageCanReadIsNotWritten() {
    for (Object value :
        new Object[] {
          Double.NaN,
          Float.POSITIVE_INFINITY,
          1L << 53,
          BigInteger.TWO.pow(53),
          new BigDecimal("1e999"),
          "\ud800",
          "a\0b",
          new Object(),
          Map.of(1, 2)
        }) {
      assertThrows(InvalidMessage.class, () -> Json.encode(value), String.valueOf(value));
    }
  }

  @Test
  void numbersOfJavaAreWrittenAsNumbers() {
    List<Object> numbers =
        List.of(1, (short) 2, 3L, 0.1f, 1.25, BigInteger.TEN, new BigDecimal("1.50"));
    assertEquals("[1,2,3,0.1,1.25,10,1.50]", Json.text(numbers));
    assertEquals("[1,2]", Json.text(new int[] {1, 2}));
  }
}
