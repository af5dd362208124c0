// Sound cards for a machine without any: what the kernel reports about them to an unmodified libasound. Replaces libc's
// functions with which libasound asks the kernel, for one thread at a time.
#pragma once
#include <stdbool.h>

/// From now on the calling thread sees these cards, and no others:
///
/// - 0, "SluiceMic": device 0 plays ("Line out") and captures ("Line in"), device 1 plays, device 2 captures
///   ("Headset");
/// - 1, "Locked": it can be listed, but not opened;
/// - 3, "Second": device 0 captures ("Boom").
///
/// No PCM of theirs can be opened.
void sound_cards_plug(void);
/// Ends it.
void sound_cards_unplug(void);
/// False under a sanitizer, which needs libc's functions for itself: no card is seen then.
bool sound_cards_work(void);
