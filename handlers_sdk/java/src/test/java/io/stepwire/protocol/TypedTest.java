package io.stepwire.protocol;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.stepwire.JsonName;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class TypedTest {
  enum Speed {
    SLOW,
    FAST
  }

  record Line(String sku, int count) {}

  record Order(
      long orderId,
      List<Line> lines,
      Optional<String> note,
      @JsonName("howFast") Optional<Speed> speed,
      Map<String, Double> prices) {}

  private static final String ORDER =
      "{\"order_id\":7,\"lines\":[{\"sku\":\"a\",\"count\":2}],\"howFast\":\"FAST\","
          + "\"prices\":{\"a\":3},\"unknown\":1}";

  @Test
  void aRecordIsReadFromMembersInSnakeCase() {
    Order order = (Order) Typed.convert(Json.parse(ORDER), Order.class);
    assertEquals(
        new Order(
            7,
            List.of(new Line("a", 2)),
            Optional.empty(),
            Optional.of(Speed.FAST),
            Map.of("a", 3.0)),
        order);
  }

  @Test
  void aRecordIsWrittenAsItIsRead() {
    Order order = (Order) Typed.convert(Json.parse(ORDER), Order.class);
    assertEquals(order, Typed.convert(Json.parse(Json.encode(order)), Order.class));
    assertEquals("{\"sku\":\"b\",\"count\":1}", Json.text(new Line("b", 1)));
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "{\"sku\":\"a\"}|`count` is missing",
        "{\"sku\":1,\"count\":1}|`sku` must be text, not a number",
        "{\"sku\":null,\"count\":1}|`sku` must be text, not null",
        "{\"sku\":\"a\",\"count\":8127.0}|`count` must be a whole number, not a number with a"
            + " fraction",
        "{\"sku\":\"a\",\"count\":\"1\"}|`count` must be a whole number, not text",
        "{\"sku\":\"a\",\"count\":true}|`count` must be a whole number, not true or false",
        "{\"sku\":\"a\",\"count\":3000000000}|`count` is outside the range of an int",
        "[]|the input must be an object, not a list",
      })
  void anInputOfAnotherTypeIsRefusedWithItsPlace(String text, String sentence) {
    InvalidMessage refusal =
        assertThrows(InvalidMessage.class, () -> Typed.convert(Json.parse(text), Line.class));
    assertEquals(true, refusal.getMessage().contains(sentence), refusal.getMessage());
  }

  @Test
  void anUnknownConstantNamesTheKnownOnes() {
    InvalidMessage refusal =
        assertThrows(InvalidMessage.class, () -> Typed.convert("OLD", Speed.class));
    assertEquals("bad_field: the input must be one of SLOW, FAST, not OLD", refusal.getMessage());
  }
}
