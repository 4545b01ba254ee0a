/** The edge between the wire and the handlers: references to secrets, and sealed payloads. */
package io.stepwire.edge;
