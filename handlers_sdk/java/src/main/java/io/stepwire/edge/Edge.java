package io.stepwire.edge;

import io.stepwire.SecretResolver;
import io.stepwire.Texts;
import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.ResultMetadata;
import io.stepwire.protocol.StepRequest;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The edge between the wire and the handlers of a worker: opens a step before its handler, and
 * closes its result after.
 *
 * <p>A step is opened by unsealing its context and the outputs before it, and by replacing its
 * references to secrets. The result is closed by removing the values of secrets, and by sealing it.
 */
public final class Edge {
  private final SecretValues secrets;
  private final SealKeys keys;

  /**
   * A step as its handler receives it, the values of its secrets by name, and the task of a sealed
   * step. {@code refusal}: the result of a step that cannot be opened, whose handler is not called;
   * otherwise null.
   */
  public record Opened(
      StepRequest step, Map<String, String> secrets, SealedTask task, Result refusal) {
    public boolean isSealed() {
      return task != null;
    }
  }

  /** Both may be null. Throws {@link io.stepwire.ConfigurationError}. */
  public Edge(SecretResolver resolver, String sealKeysFile) {
    secrets = new SecretValues(resolver);
    keys = sealKeysFile == null ? null : new SealKeys(SealKeyFile.read(sealKeysFile));
  }

  /** The resolver that reads files of this directory. */
  public static SecretResolver directory(String path) {
    return name -> SecretFiles.read(path, name);
  }

  /** The step for its handler. May wait for files. */
  public Opened open(StepRequest step) {
    SealedTask task = null;
    try {
      task = SealedSteps.taskOf(step);
      StepRequest plain = task == null ? step : SealedSteps.unsealed(step, task, neededKeys());
      Map<String, String> values = new LinkedHashMap<>();
      return new Opened(secrets.resolved(plain, values), values, task, null);
    } catch (NotUnsealed fault) {
      Result refusal = refusal(step, "not_unsealed", fault.getMessage(), null);
      return new Opened(step, Map.of(), null, refusal); // another worker may have the key
    } catch (SecretUnavailable fault) {
      // The secret may arrive, or another worker may have it, so the step's policy decides about a
      // retry.
      String text = fault.getMessage();
      Result refusal = refusal(step, "secret_unavailable", text, fault.category());
      return new Opened(step, Map.of(), null, sealed(step, task, refusal));
    }
  }

  private static Result refusal(StepRequest step, String code, String text, String category) {
    ErrorDetail error = new ErrorDetail(Texts.clean(text), code, category, true, null, null);
    return Result.without(step.item(), Result.Status.ERROR, error, ResultMetadata.EMPTY);
  }

  /** The result as it may leave the worker. */
  public Result close(Opened opened, Result result) {
    StepRequest step = opened.step;
    if (result.status() != Result.Status.COMPLETED) {
      return sealed(step, opened.task, result);
    }
    byte[] output = result.output();
    if (!opened.secrets.isEmpty()) {
      output = SecretValues.withoutValues(output, opened.secrets);
    }
    if (opened.task != null) {
      output = neededKeys().seal("output", opened.task, step.stepName(), output);
    }
    return Result.completed(result.item(), output, result.metadata());
  }

  private Result sealed(StepRequest step, SealedTask task, Result result) {
    boolean hasText = task != null && result.error() != null;
    return hasText
        ? result.withError(SealedSteps.sealed(step, task, neededKeys(), result.error()))
        : result;
  }

  private SealKeys neededKeys() {
    if (keys == null) {
      throw new NotUnsealed(
          "the step is sealed, and this worker has no keys: set " + SealKeyFile.FILE);
    }
    return keys;
  }
}
