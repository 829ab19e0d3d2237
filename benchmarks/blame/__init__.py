"""Does a coach blame the teammate that caused a failure?"""
