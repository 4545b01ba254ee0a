/** Refuses a Node that is too old, in one sentence. The first module that is loaded. */

const OLDEST = 18

if (Number(process.versions.node.split('.')[0]) < OLDEST) {
  process.stderr.write(
    `Stepwire needs Node ${OLDEST} or newer, and this is Node ${process.versions.node}: install a newer Node\n`,
  )
  process.exit(1)
}
