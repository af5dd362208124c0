// Nothing to call: the library is preloaded into a program. The header makes it a Swift package target.
#pragma once
