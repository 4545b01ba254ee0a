/** The thread that owns both sockets, and what it needs. */
package io.stepwire.worker;
