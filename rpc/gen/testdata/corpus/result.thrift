// A package whose name the stubs use for themselves.
namespace go corpus.result
struct Outcome { 1: bool good }
