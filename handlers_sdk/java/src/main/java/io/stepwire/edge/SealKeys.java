package io.stepwire.edge;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.stepwire.Texts;
import io.stepwire.protocol.Json;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.crypto.Cipher;
import javax.crypto.Mac;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/**
 * Keys by their {@code kid}. The first seals, all of them unseal: AES-256-GCM with a nonce that
 * follows from the content, so a repeated submission has the same bytes and its idempotency key
 * holds. protocol/SPEC.md section 21 has the format, and protocol/vectors/sealed.json examples.
 */
final class SealKeys {
  static final String MEMBER = "$sealed";
  static final String ENCRYPTION = "stepwire sealed v1 encryption";
  static final String NONCE = "stepwire sealed v1 nonce";
  private static final String VERSION = "v1";
  private static final int NONCE_BYTES = 12;
  private static final int TAG_BYTES = 16;
  private static final int KEY_BYTES = 32;
  private static final int KID_SHOWN_MAX = 64;

  private final Map<String, Pair> pairs = new LinkedHashMap<>();
  private final String kid;

  private record Pair(byte[] encryption, byte[] nonce) {}

  SealKeys(Map<String, byte[]> keys) {
    keys.forEach(
        (name, key) -> pairs.put(name, new Pair(derived(key, ENCRYPTION), derived(key, NONCE))));
    kid = keys.keySet().iterator().next();
  }

  /** True if the value is meant as a sealed payload, whether its form is right or not. */
  static boolean isSealed(Object value) {
    return value instanceof Map<?, ?> members && members.containsKey(MEMBER);
  }

  /**
   * The sealed payload as JSON. Its {@code clear} is the member {@code clear} of the plaintext, if
   * that is an object. {@code step}: null for a context.
   */
  byte[] seal(String kind, SealedTask task, String step, byte[] plaintext) {
    Pair pair = pairs.get(kid);
    byte[] aad = associatedData(kind, kid, task, step);
    byte[] nonce = Arrays.copyOf(hmac(pair.nonce, aad, plaintext), NONCE_BYTES);
    byte[] data;
    try {
      data = cipher(Cipher.ENCRYPT_MODE, pair, nonce, aad).doFinal(plaintext);
    } catch (GeneralSecurityException fault) {
      throw new IllegalStateException(fault); // every Java has AES-GCM
    }
    Map<String, Object> payload = new LinkedHashMap<>();
    payload.put(MEMBER, VERSION);
    payload.put("kid", kid);
    if (kind.equals("context")) {
      payload.put("task", task);
    }
    payload.put("nonce", Base64.getEncoder().encodeToString(nonce));
    payload.put("data", Base64.getEncoder().encodeToString(data));
    payload.put("clear", kind.equals("error") ? Map.of() : clearPart(plaintext));
    return Json.encode(payload);
  }

  /**
   * The plaintext of a decoded payload. Throws {@link NotUnsealed}, whose text holds nothing of the
   * payload.
   */
  byte[] unseal(String kind, SealedTask task, String step, Map<?, ?> payload) {
    String subject = "the " + kind + " ";
    if (!VERSION.equals(payload.get(MEMBER))) {
      throw new NotUnsealed(subject + "is sealed in a version that this program does not know");
    }
    String named = String.valueOf(payload.get("kid"));
    Pair pair = pairs.get(named);
    if (pair == null) {
      int characters = Math.min(KID_SHOWN_MAX, named.codePointCount(0, named.length()));
      String shown = Texts.repr(named.substring(0, named.offsetByCodePoints(0, characters)));
      throw new NotUnsealed(
          subject + "is sealed with the key " + shown + ", which is not in the file of keys");
    }
    try {
      byte[] nonce = decoded(payload.get("nonce"));
      byte[] data = decoded(payload.get("data"));
      if (nonce.length != NONCE_BYTES || data.length < TAG_BYTES) {
        throw new IllegalArgumentException("no nonce or no tag");
      }
      byte[] aad = associatedData(kind, named, task, step);
      byte[] plaintext = cipher(Cipher.DECRYPT_MODE, pair, nonce, aad).doFinal(data);
      UTF_8.newDecoder().decode(ByteBuffer.wrap(plaintext));
      return plaintext;
    } catch (GeneralSecurityException | IllegalArgumentException | CharacterCodingException fault) {
      String where = step == null ? "another task" : "another task or step";
      throw new NotUnsealed(
          subject + "was changed after it was sealed, or it belongs to " + where);
    }
  }

  private static byte[] decoded(Object text) {
    if (!(text instanceof String base64) || base64.length() % 4 != 0) {
      throw new IllegalArgumentException("no Base64 with padding");
    }
    return Base64.getDecoder().decode(base64);
  }

  private static Cipher cipher(int direction, Pair pair, byte[] nonce, byte[] aad)
      throws GeneralSecurityException {
    Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
    SecretKeySpec key = new SecretKeySpec(pair.encryption, "AES");
    cipher.init(direction, key, new GCMParameterSpec(TAG_BYTES * 8, nonce));
    cipher.updateAAD(aad);
    return cipher;
  }

  private static Object clearPart(byte[] plaintext) {
    String text = new String(plaintext, UTF_8);
    boolean mayHave = text.contains("\"clear\"") || text.contains("\\u00");
    Object value = mayHave ? Json.parse(plaintext) : null;
    Object clear = value instanceof Map<?, ?> members ? members.get("clear") : null;
    return clear instanceof Map<?, ?> ? clear : Map.of();
  }

  /**
   * The bytes to which a payload is bound. Each part follows its length, so no two lists give the
   * same bytes.
   */
  static byte[] associatedData(String kind, String kid, SealedTask task, String step) {
    List<String> parts = new ArrayList<>(List.of("stepwire sealed v1", kind, kid));
    parts.addAll(List.of(task.namespace(), task.workflow(), task.key()));
    if (step != null) {
      parts.add(step);
    }
    ByteArrayOutputStream data = new ByteArrayOutputStream();
    for (String part : parts) {
      byte[] bytes = part.getBytes(UTF_8);
      data.writeBytes((bytes.length + ":").getBytes(UTF_8));
      data.writeBytes(bytes);
    }
    return data.toByteArray();
  }

  /** A key for one purpose: HKDF-SHA-256 (RFC 5869) without salt, 32 bytes. */
  static byte[] derived(byte[] key, String purpose) {
    byte[] pseudorandom = hmac(new byte[KEY_BYTES], key, new byte[0]);
    return hmac(pseudorandom, purpose.getBytes(UTF_8), new byte[] {1});
  }

  private static byte[] hmac(byte[] key, byte[] first, byte[] second) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      mac.update(first);
      return mac.doFinal(second);
    } catch (GeneralSecurityException fault) {
      throw new IllegalStateException(fault); // every Java has HmacSHA256
    }
  }
}
