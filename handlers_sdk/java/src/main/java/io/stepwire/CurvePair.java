package io.stepwire;

import java.math.BigInteger;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.spec.NamedParameterSpec;
import java.security.spec.XECPrivateKeySpec;
import java.security.spec.XECPublicKeySpec;
import javax.crypto.KeyAgreement;

/** The public key of a CURVE secret key: X25519 with the base point of the curve. */
final class CurvePair {
  private static final BigInteger BASE_POINT = BigInteger.valueOf(9);

  private CurvePair() {}

  static byte[] publicKeyOf(byte[] secretKey) {
    try {
      KeyFactory keys = KeyFactory.getInstance("X25519");
      PrivateKey secret =
          keys.generatePrivate(new XECPrivateKeySpec(NamedParameterSpec.X25519, secretKey));
      PublicKey base =
          keys.generatePublic(new XECPublicKeySpec(NamedParameterSpec.X25519, BASE_POINT));
      KeyAgreement agreement = KeyAgreement.getInstance("X25519");
      agreement.init(secret);
      agreement.doPhase(base, true);
      return agreement.generateSecret();
    } catch (GeneralSecurityException fault) {
      throw new IllegalStateException("this Java has no X25519", fault);
    }
  }
}
