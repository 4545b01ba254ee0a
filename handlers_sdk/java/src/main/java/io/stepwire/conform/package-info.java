/** The worker that the conformance kit grades. */
package io.stepwire.conform;
