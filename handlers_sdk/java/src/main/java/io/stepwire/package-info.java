/**
 * Handlers of Stepwire in Java: {@link io.stepwire.Worker} offers them to brokers, {@link
 * io.stepwire.Context} is what each run receives, and the exceptions say how a run failed.
 */
package io.stepwire;
