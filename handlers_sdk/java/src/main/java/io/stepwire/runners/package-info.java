/** Where handlers run: never on the thread of the sockets. */
package io.stepwire.runners;
