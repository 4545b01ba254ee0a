package io.stepwire.edge;

import io.stepwire.StepwireError;

/**
 * The payload cannot be unsealed: its key is missing, or it was changed or belongs to another task
 * or step.
 */
final class NotUnsealed extends StepwireError {
  private static final long serialVersionUID = 1L;

  NotUnsealed(String message) {
    super(message);
  }
}
