/** A message that is refused. `code` is a code of protocol/SPEC.md section 18; `reason` names the place and the fault. */
export class InvalidMessage extends Error {
  constructor(code, reason = '') {
    super(reason ? `${code}: ${reason}` : code)
    this.name = 'InvalidMessage'
    this.code = code
    this.reason = reason || code
  }
}
