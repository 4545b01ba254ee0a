/**
 * The worker's half of the protocol, as pure logic: without sockets, clock, threads or randomness
 * of its own. The caller passes facts with the time, and receives actions. {@link
 * io.stepwire.session.Session} composes the parts; each part owns its state.
 */
package io.stepwire.session;
