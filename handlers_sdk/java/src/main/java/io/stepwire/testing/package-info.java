/** Runs handlers in unit tests, without a broker. */
package io.stepwire.testing;
