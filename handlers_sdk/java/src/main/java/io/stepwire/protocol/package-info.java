/** The protocol: limits, topics, patterns, strict JSON, and the messages of level 1. */
package io.stepwire.protocol;
