/** The arrays with values that travel by reference, as a program of the rack declares them. */
namespace go marked

service Marked {
  binary increment(1: binary data (bifrost.ref), 2: i8 delta) (bifrost.ref)
  binary add(1: binary a (bifrost.ref), 2: binary b (bifrost.ref)) (bifrost.ref)
}
