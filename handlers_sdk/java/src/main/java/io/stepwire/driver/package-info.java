/** The session of this SDK behind stdin and stdout, for the conformance kit. */
package io.stepwire.driver;
